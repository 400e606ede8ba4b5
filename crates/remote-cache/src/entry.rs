//! An entry of a map: states that a chunk is in the data file, and during which boot it was verified.

use std::{
    fs, process,
    time::{SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{DIGEST_BYTES, Digest};

/// The size of an entry in the map. 64 entries fill a page, so no entry spans two pages.
pub(crate) const ENTRY_BYTES: usize = 64;

/// States that a chunk is in the data file, with data to verify it. Bytes that are not a valid entry of this chunk of
/// this object, including zeros, mean that the chunk is absent.
///
/// | bytes | field, little-endian |
/// | --- | --- |
/// | 8 | the boot during which the chunk was verified |
/// | 8 | the time in nanoseconds since that boot; different for all entries of one chunk |
/// | 8 | XXH3 of the chunk |
/// | 8 | XXH3 of the object's id, the index of the chunk and the other fields of the entry |
/// | 32 | SHA-256 of the chunk if there is no other way to verify it after a reboot; else zero |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapEntry {
    pub(crate) boot: u64,
    pub(crate) stamp_ns: u64,
    pub(crate) sum: u64,
    pub(crate) digest: Digest,
}

impl MapEntry {
    /// Creates the entry of a chunk with these bytes, verified now.
    pub(crate) fn new(boot: BootId, stamp_ns: u64, bytes: &[u8], digest: Option<Digest>) -> Self {
        let digest = digest.unwrap_or(Digest([0; DIGEST_BYTES]));
        Self { boot: boot.to_bits(), stamp_ns, sum: xxh3_64(bytes), digest }
    }

    /// Decodes an entry; `None` if the bytes are not a valid entry of chunk `index` of `object`.
    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES], object: &Digest, index: u64) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let digest = Digest(bytes[32..].try_into().ok()?);
        let entry = Self { boot: word(0), stamp_ns: word(8), sum: word(16), digest };
        (word(24) == entry.check(object, index)).then_some(entry)
    }

    /// Encodes the entry for [`MapEntry::decode`].
    pub(crate) fn encode(&self, object: &Digest, index: u64) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let words = [self.boot, self.stamp_ns, self.sum, self.check(object, index)];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes[32..].copy_from_slice(&self.digest.0);
        bytes
    }

    /// Whether these bytes are those of the chunk for which the entry was created.
    pub(crate) fn fits(&self, bytes: &[u8]) -> bool {
        xxh3_64(bytes) == self.sum
    }

    fn check(&self, object: &Digest, index: u64) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(&object.0);
        for word in [index, self.boot, self.stamp_ns, self.sum] {
            hash.update(&word.to_le_bytes());
        }
        hash.update(&self.digest.0);
        hash.digest()
    }
}

/// A boot of the machine: the time from start to power-off. Bytes that were written during the current boot are at
/// least in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BootId(u64);

impl BootId {
    /// The current boot. If the kernel does not report it, the id is unique to this process.
    pub fn current() -> Self {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
            |_| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Self::of(&format!("{} {}", process::id(), now.as_nanos()))
            },
            |text| Self::of(text.trim()),
        )
    }

    /// The boot with this id of the kernel.
    pub fn of(text: &str) -> Self {
        Self(xxh3_64(text.as_bytes()))
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_whole_entries_of_the_same_chunk_are_read(
            boot: u64, stamp_ns: u64, sum: u64, digest: [u8; 32], index in 0..1_u64 << 24, bit in 0..512_usize,
        ) {
            let object = Digest::of(b"object");
            let entry = MapEntry { boot, stamp_ns, sum, digest: Digest(digest) };
            let mut bytes = entry.encode(&object, index);
            prop_assert_eq!(MapEntry::decode(&bytes, &object, index), Some(entry));
            prop_assert_eq!(MapEntry::decode(&bytes, &object, index + 1), None);
            prop_assert_eq!(MapEntry::decode(&bytes, &Digest::of(b"other"), index), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(MapEntry::decode(&bytes, &object, index), None);
        }
    }

    #[test]
    fn zeros_are_no_entry() {
        assert_eq!(MapEntry::decode(&[0; ENTRY_BYTES], &Digest([0; 32]), 0), None);
    }
}
