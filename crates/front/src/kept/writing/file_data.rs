//! Where a kept image has the data of regular files.

use std::ops::Range;

use floe_image::ByteRange;

use super::{Writing, sound};
use crate::{
    geometry::{BLOCK_BYTES, KEPT_DATA_BLOCK, KEPT_PLAIN_BLOCK},
    kept::{entry::EntryData, image_file::ImageFile, not_kept::NotKept},
    node::{ChunkMap, INODE_BYTES, Node},
    render::HOLE,
};

/// The number of chunks of a file with holes that are mapped at a time.
const CHUNKS_STEP: u64 = 1024;

/// The number of bytes that an inode with its names takes at most, in almost all images. While as many are left for each inode,
/// the ends of plain files are copied.
const BYTES_PER_INODE: u64 = 192;

/// Without as many bytes for maps, the kernel decodes no further file.
const COMPRESSED_ROOM_MIN: u64 = 64 << 10;

impl Writing<'_> {
    /// The data of a regular file with `xattr_len` bytes of attributes, if the kernel can read it in the image.
    pub(super) fn data_in_image(&mut self, node: &Node, xattr_len: u64) -> Result<Option<EntryData>, NotKept> {
        let size = node.attr().size;
        let Some(image) = self.image_file.filter(|_| size > 0) else { return Ok(None) };
        let for_others = self.inodes_left.saturating_mul(BYTES_PER_INODE);
        let room = self.bytes_max.saturating_sub(self.metadata.end()).saturating_sub(for_others);
        // The tail is in one block with the inode, and can leave as much of the block before it unused.
        let tail_max = BLOCK_BYTES.saturating_sub(INODE_BYTES + xattr_len).min(room / 2);
        let original = self.view.file_system.as_ref();
        if let Some(found) = image.find(original, node.nid, size, tail_max)? {
            return Ok(Some(EntryData::Plain(found)));
        }
        if room < COMPRESSED_ROOM_MIN {
            return Ok(None);
        }
        let Some(found) = self.compressed.find(image, original, node.nid, size)? else { return Ok(None) };
        Ok(Some(EntryData::Compressed(found)))
    }

    /// The address in the kept image of `block_count` blocks of the original from `block` on.
    pub(super) fn image_address(&mut self, block: u32, block_count: u64) -> u32 {
        let end = block.saturating_add(u32::try_from(block_count).unwrap_or(u32::MAX));
        self.image_blocks = self.image_blocks.max(end);
        KEPT_PLAIN_BLOCK + block
    }

    /// Writes the chunk map of a file with holes at `start`, and gives addresses to the data between them.
    pub(super) fn write_chunks(
        &mut self,
        node: &Node,
        map: ChunkMap,
        front_nid: u32,
        start: u64,
    ) -> Result<(), NotKept> {
        let size = node.attr().size;
        let mut position = 0;
        while position < map.count {
            if (self.pace)().is_break() {
                return Err(NotKept::Ended);
            }
            let end = map.count.min(position + CHUNKS_STEP);
            let mut addresses = vec![HOLE; (end - position) as usize];
            let mut runs = sound(self.view.data_runs(node, map, position..end))?;
            if let Some(image) = self.image_file {
                runs = self.put_plain_chunks(image, node, map, position, &runs, &mut addresses)?;
            }
            for run in runs {
                let offset = run.start << map.chunk_log2;
                let run_size = size.min(run.end << map.chunk_log2) - offset;
                let first = self.runs.assign(node.nid, front_nid, offset, run_size).ok_or(NotKept::TooLarge)?;
                for chunk in run.clone() {
                    let distance = ((chunk - run.start) << map.chunk_log2) / BLOCK_BYTES;
                    if let Some(address) = addresses.get_mut((chunk - position) as usize) {
                        *address = (u64::from(KEPT_DATA_BLOCK) + u64::from(first) + distance) as u32;
                    }
                }
            }
            let bytes: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
            self.metadata.put(start + position * size_of::<u32>() as u64, &bytes)?;
            position = end;
        }
        Ok(())
    }

    /// Puts the addresses of those chunks of `runs` that the kernel can read in the original into `addresses`, which begins with
    /// that of chunk `first`. Returns the other chunks.
    fn put_plain_chunks(
        &mut self,
        image: &ImageFile,
        node: &Node,
        map: ChunkMap,
        first: u64,
        runs: &[Range<u64>],
        addresses: &mut [u32],
    ) -> Result<Vec<Range<u64>>, NotKept> {
        let mut others: Vec<Range<u64>> = Vec::new();
        for chunk in runs.iter().cloned().flatten() {
            let end = node.attr().size.min((chunk + 1) << map.chunk_log2);
            let range = ByteRange::between(chunk << map.chunk_log2, end);
            let block = image.find_range(self.view.file_system.as_ref(), node.nid, range)?;
            match (block, addresses.get_mut((chunk - first) as usize)) {
                (Some(block), Some(address)) => {
                    *address = self.image_address(block, range.len().div_ceil(BLOCK_BYTES));
                }
                _ => match others.last_mut() {
                    Some(last) if last.end == chunk => last.end += 1,
                    _ => others.push(chunk..chunk + 1),
                },
            }
        }
        Ok(others)
    }
}
