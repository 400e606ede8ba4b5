//! Keys of cached objects.

use std::fmt;

use crate::{Digest, TableRoot};

/// The maximum size of an object: 4 TiB. It bounds the cost of a false length from a server.
pub const OBJECT_BYTES_MAX: u64 = 1 << 42;

/// The root of trust of an object. It is also part of the object's name in the cache: bytes that were verified against
/// one root never answer a reader that trusts another.
#[derive(Clone, Debug)]
pub enum Trust {
    /// A dm-verity hash tree at the end of the object.
    Verity(VerityRoot),
    /// A table with the SHA-256 of each 256 KiB.
    Table(TableRoot),
    /// Only the location. The bytes are not verified; a changed object is noticed by its ETag and its length.
    Location(Location),
}

/// The root of a dm-verity hash tree, as containerd records it beside a layer. Both values must come from a trusted
/// place, such as a manifest with a known digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerityRoot {
    /// The digest of the topmost hash block.
    pub root_hash: Digest,
    /// The offset of the dm-verity superblock in the object, in bytes; the image ends there.
    pub hash_offset: u64,
}

/// The location of an unverified object, and its version.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// Its URL, without credentials.
    pub url: String,
    /// Its strong ETag, or another text that changes whenever the object does.
    pub etag: String,
}

/// An object: its root of trust and its length.
#[derive(Clone, Debug)]
pub struct ObjectKey {
    /// The root of trust.
    pub trust: Trust,
    /// The length in bytes, including the hash tree.
    pub len: u64,
}

impl ObjectKey {
    /// The name of the object's directory in the cache.
    pub fn id(&self) -> Digest {
        Digest::of(self.to_string().as_bytes())
    }

    /// Whether every byte is verified before a reader gets it.
    pub const fn is_verified(&self) -> bool {
        !matches!(self.trust, Trust::Location(_))
    }

    /// How many bytes of the object a reader may read: all bytes before the hash tree.
    pub fn data_len(&self) -> u64 {
        match &self.trust {
            Trust::Verity(root) => root.hash_offset.min(self.len),
            Trust::Table(_) | Trust::Location(_) => self.len,
        }
    }
}

impl fmt::Display for ObjectKey {
    /// `floe status` uses this form too.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trust {
            Trust::Verity(VerityRoot { root_hash, hash_offset }) => {
                write!(formatter, "dm-verity sha256:{root_hash} at {hash_offset}")?;
            }
            Trust::Table(table) => write!(formatter, "table sha256:{}", table.digest())?,
            Trust::Location(Location { url, etag }) => {
                write!(formatter, "unverified {} etag {etag:?}", url.escape_debug())?;
            }
        }
        write!(formatter, " of {} bytes", self.len)
    }
}
