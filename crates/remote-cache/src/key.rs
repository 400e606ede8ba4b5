//! Which object something in the cache belongs to.

use std::fmt;

use crate::{Digest, TableRoot};

/// The most bytes an object may have: 4 TiB. It bounds what a server's word about a length can cost.
pub const OBJECT_BYTES_MAX: u64 = 1 << 42;

/// What the bytes of an object are held against. It is also the object's name in the cache: bytes that were verified against
/// one root never answer a reader who trusts another.
#[derive(Clone, Debug)]
pub enum Trust {
    /// A dm-verity hash tree at the end of the object.
    Verity(VerityRoot),
    /// A table with the SHA-256 of each 256 KiB.
    Table(TableRoot),
    /// Nothing but the place. The bytes are unverified; a changed object is noticed by its ETag and its length.
    Location(Location),
}

/// The root of a dm-verity hash tree, as containerd records it beside a layer. Both values come from a trusted place, such as
/// a manifest with a known digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerityRoot {
    /// The digest of the topmost hash block.
    pub root_hash: Digest,
    /// Where in the object the dm-verity superblock is, which is also where the image ends, in bytes.
    pub hash_offset: u64,
}

/// Where an unverified object is, and which version of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// Its URL, without credentials.
    pub url: String,
    /// Its strong ETag, or another word that changes whenever the object does.
    pub etag: String,
}

/// An object: what it is held against, and how many bytes it has.
#[derive(Clone, Debug)]
pub struct ObjectKey {
    /// What its bytes are held against.
    pub trust: Trust,
    /// How many bytes it has, the hash tree included, in bytes.
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

    /// How many bytes of the object a reader may read: all before the hash tree.
    pub fn data_len(&self) -> u64 {
        match &self.trust {
            Trust::Verity(root) => root.hash_offset.min(self.len),
            Trust::Table(_) | Trust::Location(_) => self.len,
        }
    }
}

impl fmt::Display for ObjectKey {
    /// What `floe status` calls it, too.
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
