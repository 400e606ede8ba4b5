//! The cache of a zone: a mirror that its nodes ask before the registry.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use floe_sync::Mutex;

use super::http::{Objects, Part, get};

/// The size of the pieces that Dragonfly fetches and keeps, in bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// What a mirror keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Like Dragonfly: pieces of 4 MiB of all that its nodes request, and documents, each fetched once.
    Pieces,
    /// Like Spegel: nothing but what some node has stored as a whole, so nothing of an image that is only mounted.
    Whole,
}

/// A mirror of the registry at `upstream`.
pub(super) struct ZoneCache {
    kept: Kept,
    upstream: SocketAddr,
    pieces: Mutex<HashMap<(String, u64), Arc<Piece>>>,
}

/// A piece, which the first request for it fetches: the length of the object and the bytes, or `None` if they cannot be had.
type Piece = OnceLock<Option<(u64, Vec<u8>)>>;

impl ZoneCache {
    pub(super) fn new(kept: Kept, upstream: SocketAddr) -> Self {
        Self { kept, upstream, pieces: Mutex::default() }
    }

    /// Calls `read` with a piece of an object, and the length of the object.
    fn with_piece<T>(&self, path: &str, number: u64, read: impl FnOnce(u64, &[u8]) -> T) -> Option<T> {
        let key = (path.to_owned(), number);
        let piece = Arc::clone(self.pieces.lock().entry(key.clone()).or_default());
        let first = number * PIECE_BYTES;
        let fetched = piece.get_or_init(|| get(self.upstream, path, Some((first, first + PIECE_BYTES - 1))).ok());
        if fetched.is_none() {
            // The next request tries again.
            self.pieces.lock().remove(&key);
        }
        fetched.as_ref().map(|(object_len, bytes)| read(*object_len, bytes))
    }
}

impl Objects for ZoneCache {
    fn object(&self, path: &str, range: Option<(u64, u64)>) -> Option<Part> {
        if self.kept == Kept::Whole {
            return None;
        }
        let object_len = self.with_piece(path, 0, |object_len, _| object_len)?;
        let (first, last) = range.unwrap_or((0, object_len.checked_sub(1)?));
        let last = last.min(object_len.checked_sub(1)?);
        let mut bytes = Vec::new();
        for number in first / PIECE_BYTES..=last / PIECE_BYTES {
            let piece_at = number * PIECE_BYTES;
            let (from, to) = (first.saturating_sub(piece_at), (last + 1 - piece_at).min(PIECE_BYTES));
            let part = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
            bytes.extend(self.with_piece(path, number, |_, piece| piece.get(part).map(<[u8]>::to_vec))??);
        }
        let media_type = if path.contains("/manifests/") {
            "application/vnd.oci.image.manifest.v1+json"
        } else {
            "application/octet-stream"
        };
        Some(Part { media_type, object_len, bytes })
    }
}
