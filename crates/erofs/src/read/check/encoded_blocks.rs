//! For which file each encoded block is decoded.

use std::collections::{HashMap, hash_map::Entry};

use floe_image::{DeviceId, Nid, StoredBlock, StoredLen};

/// For which file each encoded block is decoded: once, as far as the file that needs most of it does.
#[derive(Default)]
pub(super) struct EncodedBlocks {
    needs: HashMap<(DeviceId, u64, StoredLen), Need>,
}

/// What is needed of a block, and by which part of which file.
struct Need {
    bytes: u32,
    nid: Nid,
    position: u64,
}

impl EncodedBlocks {
    /// Takes down that byte `position` of a file begins in a block; says whether the file needs more of it than those before.
    pub(super) fn add(&mut self, block: &StoredBlock, nid: Nid, position: u64) -> bool {
        let need = Need { bytes: block.decoded_len.bytes(), nid, position };
        match self.needs.entry((block.device, block.offset, block.stored_len)) {
            Entry::Occupied(known) if known.get().bytes >= need.bytes => false,
            Entry::Occupied(mut known) => {
                known.insert(need);
                true
            }
            Entry::Vacant(vacant) => {
                vacant.insert(need);
                true
            }
        }
    }

    /// Whether a block is decoded for this part of this file.
    pub(super) fn is_decoded_for(&self, block: &StoredBlock, nid: Nid, position: u64) -> bool {
        let need = self.needs.get(&(block.device, block.offset, block.stored_len));
        need.is_some_and(|need| (need.nid, need.position) == (nid, position))
    }
}
