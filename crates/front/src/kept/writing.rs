//! Writes kept images.

use std::{fmt, fs::File, io, ops::ControlFlow, os::unix::fs::FileExt, sync::Arc};

use floe_image::{DirectoryCursor, Error, FileSystem, FileType, Nid};

use super::{
    block_set::BlockSet,
    checksum::Checksum,
    header::{Header, INDEX_START, Identity, RUN_BYTES, run_to_bytes},
};
use crate::{
    fault::lasting,
    geometry::{BLOCK_BYTES, KEPT_DATA_BLOCK, KEPT_HEADER_BLOCK, LISTING_BLOCK, META_BLOCK},
    node::{Node, Xattrs},
    render::Content,
    superblock::superblock,
    view::{Shared, View},
};

/// The number of directory entries after which the pace is asked again.
const ENTRIES_STEP: usize = 64;

/// The size of the parts in which the index is written.
const INDEX_STEP_BYTES: usize = 1 << 18;

/// The bytes behind the attributes of a large file's inode: its chunk map with padding.
const LARGE_MAP_BYTES: u64 = 16;

/// Called often while an image is kept. It may wait, to give way to other work, and may end the work.
pub type Pace<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// The reason why an image is not kept. The file that was written is of no use.
#[derive(Debug)]
pub enum NotKept {
    /// A part of the original cannot be read or breaks its format: only rendering can show where.
    Broken,
    /// It would take more bytes than allowed.
    TooLarge,
    /// The pace ended the work.
    Ended,
    /// The original cannot be read now, or has no virtual image.
    Original(Error),
    /// The file cannot be written.
    File(io::Error),
}

impl fmt::Display for NotKept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => formatter.write_str("a part of the image is broken"),
            Self::TooLarge => formatter.write_str("its metadata is too large"),
            Self::Ended => formatter.write_str("the mount ended"),
            Self::Original(error) => error.fmt(formatter),
            Self::File(error) => error.fmt(formatter),
        }
    }
}

impl From<io::Error> for NotKept {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// A kept image that is being written.
struct Writing<'a> {
    view: View,
    file: &'a File,
    written: BlockSet,
    block_count: u64,
    block_count_max: u64,
    /// The end of the last block.
    len: u64,
    pace: Pace<'a>,
}

/// Renders the metadata of `original` and writes it to `file`, which is empty, as the kept image with this identity. It takes at
/// most about `bytes_max` bytes there.
///
/// The file becomes valid with the last write. Memory is limited as for a walk of the front: about 20 bytes per file, and 60 per
/// block.
///
/// # Errors
/// The image is not kept.
pub fn keep(
    original: Arc<dyn FileSystem>,
    file: &File,
    identity: &Identity,
    bytes_max: u64,
    pace: Pace<'_>,
) -> Result<(), NotKept> {
    let root = original.root();
    let (shared, _) = Shared::new(original.as_ref()).map_err(NotKept::Original)?;
    let view = View { file_system: original, shared: Arc::new(shared), may_wait: true, non_blocking: None };
    let block_count_max = bytes_max / BLOCK_BYTES;
    let mut writing =
        Writing { view, file, written: BlockSet::default(), block_count: 0, block_count_max, len: 0, pace };
    // Directories that were named but not entered, the next one last.
    let mut pending = vec![root];
    while let Some(directory) = pending.pop() {
        let first = pending.len();
        writing.directory(directory, &mut pending)?;
        if let Some(children) = pending.get_mut(first..) {
            children.reverse();
        }
    }
    writing.finish(identity)
}

impl Writing<'_> {
    /// Writes all that names in a directory lead to, and appends its subdirectories to `pending`.
    fn directory(&mut self, nid: Nid, pending: &mut Vec<Nid>) -> Result<(), NotKept> {
        let node = self.node(nid)?;
        self.inode(&node)?;
        let mut children = Vec::new();
        let listed = self.view.file_system.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
            if dirent.name != b"." && dirent.name != b".." {
                children.push(dirent.nid);
            }
            ControlFlow::Continue(())
        });
        sound(listed)?;
        for part in children.chunks(ENTRIES_STEP) {
            if (self.pace)().is_break() {
                return Err(NotKept::Ended);
            }
            for nid in part {
                let child = self.node(*nid)?;
                if child.attr().file_type != FileType::Directory {
                    self.inode(&child)?;
                    continue;
                }
                // Others show a placeholder for a directory that is named twice.
                let is_root = *nid == self.view.file_system.root();
                if is_root || !self.view.shared.parents.claim(child.number, node.number) {
                    return Err(NotKept::Broken);
                }
                pending.push(*nid);
            }
        }
        Ok(())
    }

    /// Writes the blocks of an inode, and those with the data that is metadata.
    fn inode(&mut self, node: &Node) -> Result<(), NotKept> {
        let geometry = &self.view.shared.geometry;
        let first = u64::from(META_BLOCK) + geometry.offset(node.slot) / BLOCK_BYTES;
        let is_shared = node.slot.class.stride() < BLOCK_BYTES;
        if is_shared && node.attr().file_type != FileType::Symlink {
            return self.block(first);
        }
        let content = self.view.content(node).map_err(NotKept::Original)?;
        let end = match &content {
            Content::BrokenDirectory | Content::BrokenLink => return Err(NotKept::Broken),
            Content::Chunks(map) => map.end(),
            Content::Inline(bytes) => node.body_end() + bytes.len() as u64,
            Content::Device(_) | Content::Blocks(_) => node.body_end(),
            Content::Large(_) => node.body_end() + LARGE_MAP_BYTES,
        };
        let count = if is_shared { 1 } else { end.div_ceil(BLOCK_BYTES) };
        (first..first + count).try_for_each(|block| self.block(block))?;
        let listings = u64::from(LISTING_BLOCK)..u64::from(META_BLOCK);
        let runs = self.view.shared.addresses.of(first);
        let blocks = runs.into_iter().filter(|run| listings.contains(&run.start)).flat_map(|run| run.start..run.end);
        blocks.into_iter().try_for_each(|block| self.block(block))
    }

    /// Writes a block, unless it was written.
    fn block(&mut self, number: u64) -> Result<(), NotKept> {
        if !self.written.insert(number) {
            return Ok(());
        }
        let bytes = sound(self.view.block(number))?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.block_count += 1;
        if self.block_count > self.block_count_max {
            return Err(NotKept::TooLarge);
        }
        self.file.write_all_at(&bytes, number * BLOCK_BYTES)?;
        self.len = self.len.max((number + 1) * BLOCK_BYTES);
        Ok(())
    }

    fn node(&self, nid: Nid) -> Result<Node, NotKept> {
        let node = sound(self.view.node(nid))?;
        if node.xattrs == Xattrs::Broken { Err(NotKept::Broken) } else { Ok(node) }
    }

    /// Writes the superblock, the index and, at last, the header.
    fn finish(self, identity: &Identity) -> Result<(), NotKept> {
        let Self { view, file, block_count, block_count_max, len, .. } = self;
        let (image, large) = view.shared.addresses.kept();
        let index_bytes = (image.runs.len() + large.runs.len()) as u64 * RUN_BYTES as u64;
        if block_count + index_bytes / BLOCK_BYTES > block_count_max {
            return Err(NotKept::TooLarge);
        }
        let data_blocks = image.free - KEPT_DATA_BLOCK;
        let root = sound(view.node(view.file_system.root()))?;
        file.write_all_at(&superblock(&view.file_system.info(), view.virtual_nid(&root), Some(data_blocks)), 0)?;
        let (mut position, mut part) = (INDEX_START, Vec::new());
        for run in image.runs.iter().chain(&large.runs) {
            part.extend(run_to_bytes(run));
            if part.len() >= INDEX_STEP_BYTES {
                file.write_all_at(&part, position)?;
                position += part.len() as u64;
                part.clear();
            }
        }
        file.write_all_at(&part, position)?;
        file.set_len(len)?;
        let header = Header {
            identity: *identity,
            len,
            checksum: Checksum::of(file, block_count_max)?,
            image_runs: image.runs.len() as u64,
            large_runs: large.runs.len() as u64,
            image_free: image.free,
            large_free: large.free,
        };
        file.write_all_at(&header.to_bytes(), KEPT_HEADER_BLOCK * BLOCK_BYTES)?;
        Ok(())
    }
}

/// The value of `answer`. A permanent error is [`NotKept::Broken`].
fn sound<T>(answer: Result<T, Error>) -> Result<T, NotKept> {
    lasting(answer).map_err(NotKept::Original)?.ok_or(NotKept::Broken)
}
