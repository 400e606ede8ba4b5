//! Checks regular files: blocks, which the caller decodes, and fragments.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use floe_image::{
    ByteRange, ByteRangeSet, DecodedLen, DeviceId, Encoding, Error, ExtentData, Nid, Place, Result, StoredBlock,
    StoredLen,
};

use super::{CheckedImage, Finding, Reached};
use crate::read::{Inode, RegularInode, SizeWord};

/// How many size words of a list one claim covers.
const WORDS_PER_CLAIM: u64 = 64;

/// The blocks and fragments that regular files use.
#[derive(Default)]
pub(super) struct Files {
    /// The data blocks passed to the caller, with the number of bytes that files use.
    blocks: HashSet<(StoredBlock, u32)>,
    /// The uncompressed bytes passed to the caller.
    plain: ByteRangeSet,
    /// The use of each fragment.
    fragments: HashMap<u32, Need>,
}

/// How many bytes of a fragment files use, and the file that uses most.
struct Need {
    bytes: u32,
    file: Reached,
}

impl Files {
    pub(super) fn check(
        &mut self,
        image: &mut CheckedImage<'_, '_>,
        reached: Reached,
        inode: &Inode,
        file: &RegularInode,
    ) {
        if inode.is_extended && file.sparse > file.size {
            let finding = Finding::error("file has more bytes in holes than its size", Place::inode(reached.nid));
            image.add_finding(reached, finding);
        }
        if let Err(error) = self.check_blocks(image, reached, file) {
            image.add_error(reached, &error);
        }
        if let Err(error) = self.check_tail(image, reached, file) {
            image.add_error(reached, &error.for_inode(reached.nid));
        }
    }

    fn check_blocks(&mut self, image: &mut CheckedImage<'_, '_>, reached: Reached, file: &RegularInode) -> Result<()> {
        let squashfs = image.squashfs;
        let block_size = u64::from(squashfs.superblock.block_size());
        let mut left = file.size;
        let mut path: Option<Option<Arc<[u8]>>> = None;
        let mut list = squashfs.block_list(reached.nid, file, 0)?;
        let rule = "inode overlaps another one";
        let mut claim = image.inode_claims.begin(file.block_list, rule, Place::inode(reached.nid));
        while let Some(block) = list.next()? {
            if block.index.is_multiple_of(WORDS_PER_CLAIM) || block.index.saturating_add(1) == file.block_count {
                claim.advance(list.position())?;
                if image.report.is_cancelled() {
                    break;
                }
            }
            let len = u32::try_from(left.min(block_size)).unwrap_or(u32::MAX);
            left = left.saturating_sub(block_size);
            let end = block.offset.saturating_add(u64::from(block.size.stored_len()));
            let place = Place::inode_at(reached.nid, block.offset);
            if block.size != SizeWord::Hole && end > squashfs.inode_table.start {
                return Err(Error::corrupt("data block overlaps the tables", place));
            }
            let data = squashfs.block_data(reached.nid, &block, u64::from(len))?;
            let mut new = Vec::new();
            match data {
                ExtentData::Encoded { block, .. } if self.blocks.insert((block, len)) => new.push((block, len)),
                ExtentData::Plain { offset, .. } => self.add_plain(offset, len, &mut new),
                _ => {}
            }
            for (block, needed_bytes) in new {
                let path = path.get_or_insert_with(|| image.paths.path(reached.path).map(Into::into));
                let (nid, path) = (Some(reached.nid), path.clone());
                image.report.decode(BlockToDecode { block, needed_bytes, nid, path });
            }
        }
        Ok(())
    }

    /// Appends the uncompressed bytes that no earlier block has to `new`. Files can claim the same bytes in many ways.
    fn add_plain(&mut self, offset: u64, len: u32, new: &mut Vec<(StoredBlock, u32)>) {
        self.plain.insert_each_new(ByteRange::new(offset, len.into()), |range| {
            let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
            new.push((uncompressed(range.offset(), len), len));
        });
    }

    fn check_tail(&mut self, image: &mut CheckedImage<'_, '_>, reached: Reached, file: &RegularInode) -> Result<()> {
        let Some(tail) = file.fragment else { return Ok(()) };
        let squashfs = image.squashfs;
        let len = file.tail_bytes(squashfs.superblock.block_size());
        squashfs.map_file(reached.nid, file, ByteRange::new(file.size.saturating_sub(len), len), &mut Vec::new())?;
        let end = u64::from(tail.offset).saturating_add(len);
        let need = Need { bytes: u32::try_from(end).unwrap_or(u32::MAX), file: reached };
        match self.fragments.entry(tail.index) {
            Entry::Occupied(mut known) if known.get().bytes < need.bytes => drop(known.insert(need)),
            Entry::Occupied(_) => {}
            Entry::Vacant(vacant) => drop(vacant.insert(need)),
        }
        Ok(())
    }

    /// Passes the fragment blocks to the caller, each once for all files in it.
    pub(super) fn check_fragments(mut self, image: &mut CheckedImage<'_, '_>) {
        let squashfs = image.squashfs;
        let mut given = HashSet::new();
        for index in 0..squashfs.superblock.fragment_count {
            if image.report.is_cancelled() {
                return;
            }
            // Unreadable entries were reported when the tables were checked.
            let Ok(fragment) = squashfs.fragment(index) else { continue };
            let end = fragment.offset.saturating_add(u64::from(fragment.size.stored_len()));
            if end > squashfs.inode_table.start {
                let place = Place::at(fragment.offset);
                image.report.add(Finding::error("fragment block overlaps the tables", place));
                continue;
            }
            let needed_bytes = self.fragments.get(&index).map_or(0, |need| need.bytes);
            let mut new = Vec::new();
            match squashfs.fragment_block(&fragment) {
                None => self.add_plain(fragment.offset, fragment.size.stored_len(), &mut new),
                // If several entries refer to one block, it is decoded once for each needed length.
                Some(block) if given.insert((block.offset, block.stored_len, needed_bytes)) => {
                    new.push((block, needed_bytes));
                }
                Some(_) => {}
            }
            for (block, needed_bytes) in new {
                let need = self.fragments.get(&index);
                image.report.decode(BlockToDecode {
                    block,
                    needed_bytes,
                    nid: need.map(|need| need.file.nid),
                    path: need.and_then(|need| image.paths.path(need.file.path)).map(Into::into),
                });
            }
        }
    }
}

/// An uncompressed block.
const fn uncompressed(offset: u64, len: u32) -> StoredBlock {
    StoredBlock {
        device: DeviceId(0),
        offset,
        stored_len: StoredLen::Known(len),
        decoded_len: DecodedLen::Exact(len),
        encoding: Encoding::Stored,
    }
}

/// A data or fragment block that the check has found but not decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockToDecode {
    /// The block. The caller decodes all of it, into [`DecodedLen::bytes`] bytes. If its encoding is
    /// [`Encoding::Stored`](floe_image::Encoding), it is enough to read it.
    pub block: StoredBlock,
    /// The number of decoded bytes that files use; for a data block, all of them.
    pub needed_bytes: u32,
    /// An inode that uses it.
    pub nid: Option<Nid>,
    /// The first path to that inode.
    pub path: Option<Arc<[u8]>>,
}

impl BlockToDecode {
    /// Judges the result of decoding: the number of decoded bytes, or the error. Returns a finding if decoding failed
    /// or the length is wrong.
    pub fn judge(&self, decoded: Result<usize, &Error>) -> Option<Finding> {
        let place = Place { nid: self.nid, device: self.block.device, offset: Some(self.block.offset) };
        let finding = match decoded {
            Err(error) => Finding { place, ..Finding::from(error) },
            Ok(len) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let is_other = matches!(self.block.decoded_len, DecodedLen::Exact(exact) if exact != len);
                if !is_other && len >= self.needed_bytes {
                    return None;
                }
                Finding::error("block decodes to fewer bytes than files use", place)
            }
        };
        Some(finding.with_path(self.path.as_ref().map(|path| path.to_vec())))
    }
}
