//! Chooses the file whose check decodes a shared block.

use std::collections::{HashMap, hash_map::Entry};

use floe_image::{DecodedLen, DeviceId, Encoding, Nid, StoredBlock, StoredLen};

/// Chooses the file for which each encoded block is decoded: the one that needs most of it. Each block is decoded once.
#[derive(Default)]
pub(super) struct EncodedBlocks {
    needs: HashMap<Key, Need>,
}

/// The identity of a block: files may share stored bytes and still disagree about their decoding.
type Key = (DeviceId, u64, StoredLen, Encoding);

/// The largest number of bytes that any file needs of a block, and that file.
struct Need {
    bytes: u32,
    /// Whether the block must decode to exactly this many bytes.
    is_exact: bool,
    nid: Nid,
    position: u64,
}

/// The effect of adding a file's use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// None: the block is decoded for another file, or for another part of this one.
    Nothing,
    /// The file needs more of the block than any file before.
    More,
    /// The file contradicts an earlier one: a block cannot decode to two lengths.
    OtherLength,
}

impl EncodedBlocks {
    /// Records that byte `position` of a file begins in a block.
    pub(super) fn add(&mut self, block: &StoredBlock, nid: Nid, position: u64) -> Added {
        let is_exact = matches!(block.decoded_len, DecodedLen::Exact(_));
        let need = Need { bytes: block.decoded_len.bytes(), is_exact, nid, position };
        match self.needs.entry(key(block)) {
            Entry::Occupied(mut known) => {
                let other = known.get();
                let is_other_length = match (other.is_exact, is_exact) {
                    (true, true) => other.bytes != need.bytes,
                    (true, false) => matches!(block.decoded_len, DecodedLen::AtLeast(_)) && need.bytes > other.bytes,
                    (false, true) => need.bytes < other.bytes,
                    (false, false) => false,
                };
                if is_other_length {
                    return Added::OtherLength;
                }
                if other.is_exact || (!is_exact && other.bytes >= need.bytes) {
                    return Added::Nothing;
                }
                known.insert(need);
            }
            Entry::Vacant(vacant) => drop(vacant.insert(need)),
        }
        Added::More
    }

    /// Whether the check decodes the block for the part of file `nid` that contains byte `position`.
    pub(super) fn is_decoded_for(&self, block: &StoredBlock, nid: Nid, position: u64) -> bool {
        self.needs.get(&key(block)).is_some_and(|need| (need.nid, need.position) == (nid, position))
    }
}

fn key(block: &StoredBlock) -> Key {
    (block.device, block.offset, block.stored_len, block.encoding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_decoded_once_at_their_largest_use_and_contradictions_are_found() {
        use DecodedLen::{AtLeast, Exact};
        for (lens, expected) in [
            (&[Exact(8), Exact(8), AtLeast(8)][..], &[Added::More, Added::Nothing, Added::Nothing][..]),
            (&[AtLeast(4), AtLeast(3), AtLeast(6), Exact(6)], &[Added::More, Added::Nothing, Added::More, Added::More]),
            (&[Exact(8), Exact(4), AtLeast(9)], &[Added::More, Added::OtherLength, Added::OtherLength]),
            (&[AtLeast(9), Exact(8)], &[Added::More, Added::OtherLength]),
        ] {
            let mut blocks = EncodedBlocks::default();
            let block = |decoded_len| StoredBlock {
                device: DeviceId(0),
                offset: 4096,
                stored_len: StoredLen::Known(4),
                decoded_len,
                encoding: Encoding::Stored,
            };
            let added: Vec<_> = lens.iter().zip(0..).map(|(len, at)| blocks.add(&block(*len), Nid(5), at)).collect();
            assert_eq!(added, expected, "{lens:?}");
        }
    }
}
