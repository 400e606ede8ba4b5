//! The header of a kept image.

use xxhash_rust::xxh64::xxh64;

use super::runs::IndexPlace;
use crate::geometry::{BLOCK_BYTES, KEPT_META_BLOCK};

/// The offset of the header.
pub(super) const HEADER_START: u64 = KEPT_META_BLOCK as u64 * BLOCK_BYTES;

/// The size of the header.
pub(super) const HEADER_BYTES: usize = NUMBERS_START + 8 * NUMBER_COUNT + 8;

const MAGIC: [u8; 8] = *b"floekept";

/// The version of this format and of all that the crate renders. Kept images of other versions are not used.
const VERSION: u64 = 4;

/// The offset in the header of the numbers behind the identity, and their count.
const NUMBERS_START: usize = MAGIC.len() + 8 + size_of::<Identity>();
const NUMBER_COUNT: usize = 8;

/// Identifies an original, and the options that its rendering depends on: a digest.
pub type Identity = [u8; 32];

/// The header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) identity: Identity,
    /// The length of the file.
    pub(super) len: u64,
    pub(super) checksum: u64,
    /// The number of blocks of the original up to the last one that the kernel reads by itself.
    pub(super) image_blocks: u32,
    /// Whether the kernel decodes some of them.
    pub(super) decodes: bool,
    pub(super) index: IndexPlace,
}

impl Header {
    /// The bytes of the header.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &self.identity].concat();
        let IndexPlace { start, image_runs, large_runs, offsets, image_free, large_free } = self.index;
        let free = u64::from(large_free) << 32 | u64::from(image_free);
        let in_image = u64::from(self.image_blocks) | u64::from(self.decodes) << 32;
        let numbers: [u64; NUMBER_COUNT] =
            [self.len, self.checksum, start, image_runs, large_runs, offsets, free, in_image];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(xxh64(&bytes, 0).to_le_bytes());
        bytes
    }

    /// The header with these bytes; `None` if there is none of this version.
    pub(super) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let nth = |index: usize| number(NUMBERS_START + index * 8);
        let sum_start = HEADER_BYTES - 8;
        if !bytes.starts_with(&MAGIC)
            || number(MAGIC.len())? != VERSION
            || number(sum_start)? != xxh64(bytes.get(..sum_start)?, 0)
        {
            return None;
        }
        let free = nth(6)?;
        let index = IndexPlace {
            start: nth(2)?,
            image_runs: nth(3)?,
            large_runs: nth(4)?,
            offsets: nth(5)?,
            image_free: (free & u64::from(u32::MAX)) as u32,
            large_free: (free >> 32) as u32,
        };
        let identity = bytes.get(MAGIC.len() + 8..NUMBERS_START)?.try_into().ok()?;
        let in_image = nth(7)?;
        let (image_blocks, decodes) = ((in_image & u64::from(u32::MAX)) as u32, in_image >> 32 != 0);
        Some(Self { identity, len: nth(0)?, checksum: nth(1)?, image_blocks, decodes, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let header = Header {
            identity: [7; 32],
            len: 1 << 43,
            checksum: u64::MAX,
            image_blocks: 8,
            decodes: true,
            index: IndexPlace {
                start: 1 << 33,
                image_runs: 5,
                large_runs: 6,
                offsets: 7,
                image_free: 256,
                large_free: u32::MAX,
            },
        };
        let bytes: [u8; HEADER_BYTES] = header.to_bytes().try_into().expect("it has this size");
        assert_eq!(Header::from_bytes(&bytes), Some(header));
        for at in 0..HEADER_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Header::from_bytes(&changed), None, "{at}");
        }
    }
}
