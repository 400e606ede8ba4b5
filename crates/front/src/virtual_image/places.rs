//! The places of the original's file data in the virtual image and in the large file.

use floe_erofs::format;
use floe_image::{ByteRange, Nid, Result};

use super::{IMAGE, LARGE, Origin, VirtualImage};
use crate::{
    geometry::{BLOCK_BYTES, LARGE_START, META_BLOCK},
    node::Node,
};

impl VirtualImage {
    /// The offset in the virtual image of a byte of the original. `None` if it is not file data or is in a hole, or if the
    /// file has no addresses yet, because the kernel has read neither its inode nor a listing that names it.
    ///
    /// # Errors
    /// As [`VirtualImage::origin`].
    pub fn place(&self, origin: Origin) -> Result<Option<u64>> {
        let node = self.view.node(origin.nid)?;
        Ok(self.file_data_at(&node, origin.offset)?.map(|(start, range)| start + (origin.offset - range.offset())))
    }

    /// The parts of the virtual image and of the large file with the bytes of a range of a file of the original, in their
    /// order. Holes and files without addresses have none.
    ///
    /// # Errors
    /// As [`VirtualImage::origin`].
    pub fn places(&self, nid: Nid, range: ByteRange) -> Result<Vec<(Nid, ByteRange)>> {
        let node = self.view.node(nid)?;
        let hole_bytes = node.chunk_map().map(|map| 1 << map.chunk_log2);
        let range = range.intersection(ByteRange::new(0, node.attr().size));
        let (mut places, mut offset) = (Vec::new(), range.offset());
        while offset < range.end() {
            let Some((start, placed)) = self.file_data_at(&node, offset)? else {
                let next = hole_bytes.and_then(|bytes| (offset + 1).checked_next_multiple_of(bytes));
                let Some(next) = next else { break };
                offset = next;
                continue;
            };
            let len = placed.end().min(range.end()) - offset;
            let address = start + (offset - placed.offset());
            let file = if address >= LARGE_START { LARGE } else { IMAGE };
            places.push((file, ByteRange::new(Self::offset(address), len)));
            offset += len;
        }
        Ok(places)
    }

    /// The address of the run of file data that contains byte `offset` of a file, and the bytes of the file in the run.
    fn file_data_at(&self, node: &Node, offset: u64) -> Result<Option<(u64, ByteRange)>> {
        if let Some(kept) = &self.kept {
            let Some(run) = kept.of_file(node.nid, offset) else { return Ok(None) };
            let range = self.view.kept_data(&run)?.range;
            return Ok(range.contains(ByteRange::new(offset, 1)).then(|| (run.addresses().offset(), range)));
        }
        let shared = &self.view.shared;
        let start = shared.geometry.offset(node.slot);
        // The address of the metadata that refers to the byte, and the index of its data within the metadata block.
        let (named_at, item) = match node.chunk_map() {
            Some(map) => {
                let chunk = offset >> map.chunk_log2;
                let entry = map.start + chunk * format::BLOCK_MAP_ENTRY_SIZE;
                (start + entry, chunk.saturating_sub(map.chunks_of_block(entry / BLOCK_BYTES).start))
            }
            None => (start, start % BLOCK_BYTES / node.slot.class.stride()),
        };
        let runs = shared.addresses.of(u64::from(META_BLOCK) + named_at / BLOCK_BYTES);
        let Some(run) = runs.into_iter().rfind(|run| u64::from(run.item) <= item) else { return Ok(None) };
        let placed = self.view.placed(&run)?;
        let is_there = placed.nid == node.nid && placed.is_file;
        let is_there = is_there && placed.range.contains(ByteRange::new(offset, 1));
        Ok(is_there.then(|| (run.start_bytes(), placed.range)))
    }
}
