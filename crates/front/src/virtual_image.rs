//! The virtual image as the only file of a file system.

mod files;
mod places;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::{
    BlockReader, ByteRange, DeviceId, Error, Extent, ExtentData, FileSystem, FileType, Nid, Place, Result,
};

use crate::{
    addresses::Run,
    descent::Descent,
    directory::has_blocks_to_keep,
    fault::unreadable,
    geometry::{
        BLOCK_BYTES, BLOCK_LOG2, Class, DATA_BLOCK, LARGE_BLOCK, LARGE_BLOCK_COUNT, LARGE_NAME, LARGE_START,
        META_BLOCK, Slot,
    },
    kept::{KeptImage, KeptRuns},
    node::Node,
    rendered_source::{RenderedSource, Views},
    view::{Placed, Shared, View},
};

/// The root, whose only entry is the virtual image.
const ROOT: Nid = Nid(1);

/// The virtual image.
const IMAGE: Nid = Nid(2);

/// The data of large files.
const LARGE: Nid = Nid(3);

/// A byte of a file of the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The file, by its number in the original.
    pub nid: Nid,
    /// The byte of that file.
    pub offset: u64,
}

/// A part of a file of the virtual image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontPart {
    /// The file's inode number in the virtual image.
    pub nid: u64,
    /// Its inode in the original.
    pub original: Nid,
    /// The bytes of that file.
    pub range: ByteRange,
    /// The offset of the first of them in the file of the virtual image that has them.
    pub image_offset: u64,
}

/// What the kernel reads in the original itself, without Floe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataInImage {
    /// Nothing.
    None,
    /// Data that is stored uncompressed.
    Plain,
    /// This, and compressed data of small files.
    Compressed,
}

impl DataInImage {
    fn of(kept: &KeptImage) -> Self {
        match (kept.has_data_in_image(), kept.is_decoded_by_kernel()) {
            (false, _) => Self::None,
            (true, false) => Self::Plain,
            (true, true) => Self::Compressed,
        }
    }
}

/// An image of any format as a virtual EROFS image: the same tree, uncompressed, in files that are rendered when they
/// are read. It implements [`FileSystem`] with these files alone, so a mount can serve it like any image.
///
/// Mapping the file gives the original's extents for file data. Everything else maps to an extra source, which renders its
/// bytes when they are read. The crate's documentation describes the layout.
pub struct VirtualImage {
    view: View,
    views: Arc<Views>,
    rendered: DeviceId,
    /// The number that identifies the original's root.
    root_number: u64,
    keeps_directory_sizes: bool,
    /// The data behind a kept image, if the kernel has mounted one: the files are its devices, and nothing is rendered.
    kept: Option<Arc<KeptRuns>>,
    data_in_image: DataInImage,
}

impl VirtualImage {
    /// The name of the virtual image in the root.
    pub const NAME: &'static str = "image";

    /// The nid of the virtual image.
    pub const NID: Nid = IMAGE;

    /// The name of the large file in the root: an extra device of the virtual image.
    pub const LARGE_NAME: &'static str = LARGE_NAME;

    /// The nid of the large file.
    pub const LARGE_NID: Nid = LARGE;

    /// The length of the large file in bytes.
    pub const LARGE_LEN: u64 = LARGE_BLOCK_COUNT as u64 * BLOCK_BYTES;

    /// Opens the virtual image of `original`, whose reader is `reader`. Non-blocking rendering reads with
    /// `non_blocking`.
    ///
    /// The time for this does not depend on the number of inodes.
    ///
    /// # Errors
    /// The root cannot be read, the image has inode numbers beyond 2^38 or does not find inodes by number, or the reader does
    /// not support derived sources.
    pub fn open(
        original: Arc<dyn FileSystem>,
        reader: &Arc<dyn BlockReader>,
        non_blocking: Arc<dyn BlockReader>,
    ) -> Result<Self> {
        let (shared, root) = Shared::new(original.as_ref())?;
        Self::of_shared(original, reader, non_blocking, shared, &root, None)
    }

    /// Opens the data behind a kept image of `original`; the other arguments are as for [`VirtualImage::open`].
    ///
    /// # Errors
    /// As for [`VirtualImage::open`], or the kept image cannot be read.
    pub fn open_kept(
        original: Arc<dyn FileSystem>,
        reader: &Arc<dyn BlockReader>,
        non_blocking: Arc<dyn BlockReader>,
        kept: &KeptImage,
    ) -> Result<Self> {
        let io_error = |error: io::Error| Error::Io { error: Arc::new(error), place: Place::UNKNOWN };
        let (shared, root) = Shared::new(original.as_ref())?;
        let runs = kept.runs().map_err(io_error)?;
        let image = Self::of_shared(original, reader, non_blocking, shared, &root, Some(Arc::new(runs)))?;
        Ok(Self { data_in_image: DataInImage::of(kept), ..image })
    }

    fn of_shared(
        original: Arc<dyn FileSystem>,
        reader: &Arc<dyn BlockReader>,
        non_blocking: Arc<dyn BlockReader>,
        shared: Shared,
        root: &Node,
        kept: Option<Arc<KeptRuns>>,
    ) -> Result<Self> {
        let non_blocking = Arc::clone(&original).with_reader(non_blocking);
        let waiting =
            View { file_system: original, shared: Arc::new(shared), may_wait: true, non_blocking: Some(non_blocking) };
        let non_blocking = waiting.non_blocking_view().ok_or_else(unreadable)?;
        let views = Arc::new(Views { waiting: waiting.clone(), non_blocking, rendered_count: AtomicU64::new(0) });
        let source = RenderedSource { views: Arc::downgrade(&views), len: waiting.shared.geometry.image_len() };
        let rendered = reader.add_derived(Arc::new(source))?;
        let keeps_directory_sizes = has_blocks_to_keep(root);
        let root_number = root.number;
        let data_in_image = DataInImage::None;
        Ok(Self { view: waiting, views, rendered, root_number, keeps_directory_sizes, kept, data_in_image })
    }

    /// Whether directories are as large in the virtual image as in the original.
    pub fn keeps_directory_sizes(&self) -> bool {
        self.keeps_directory_sizes
    }

    /// Whether the original's format has access control lists.
    pub fn has_acls(&self) -> bool {
        self.view.file_system.capabilities().has_acls
    }

    /// Whether a kept image is mounted, so that the kernel reads no metadata here.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// What the kernel reads in the original itself.
    pub fn data_in_image(&self) -> DataInImage {
        self.data_in_image
    }

    /// The length of the virtual image in bytes, most of which is unused addresses; or that of the data of small files behind a
    /// kept image.
    pub fn len(&self) -> u64 {
        match &self.kept {
            Some(kept) => u64::from(kept.image_block_count()) * BLOCK_BYTES,
            None => self.view.shared.geometry.image_len(),
        }
    }

    /// Whether the virtual image is empty: always `false`.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of a byte of one of the files, in addresses that cover both. The other functions take such
    /// addresses.
    pub fn address(&self, nid: Nid, offset: u64) -> u64 {
        offset.saturating_add(if nid == LARGE { LARGE_START } else { 0 })
    }

    /// The offset of an address in its file.
    fn offset(address: u64) -> u64 {
        address.checked_sub(LARGE_START).unwrap_or(address)
    }

    /// The number of blocks that were rendered for readers.
    pub fn rendered_block_count(&self) -> u64 {
        self.views.rendered_count.load(Relaxed)
    }

    /// The byte of the original behind the byte at address `offset`; `None` if it is not file data.
    ///
    /// # Errors
    /// The original's metadata cannot be read now.
    pub fn origin(&self, offset: u64) -> Result<Option<Origin>> {
        let Some((run, placed)) = self.placed_at(offset)? else { return Ok(None) };
        let within = offset - run.offset();
        let is_there = placed.is_file && within < placed.range.len();
        Ok(is_there.then(|| Origin { nid: placed.nid, offset: placed.range.offset() + within }))
    }

    /// The files of the virtual image with data in `range`, in order. `None` if the first byte of `range` is not file data.
    ///
    /// # Errors
    /// The original's metadata cannot be read now.
    pub fn files_in(&self, range: ByteRange) -> Result<Option<Vec<FrontPart>>> {
        let mut parts = Vec::new();
        let mut position = range.offset();
        while position < range.end() {
            let Some((run, placed)) = self.placed_at(position)?.filter(|(_, placed)| placed.is_file) else { break };
            let within = position - run.offset() + placed.range.offset();
            let end = range.end().min(run.end());
            let part = ByteRange::new(within, end - position).intersection(placed.range);
            if !part.is_empty() {
                // A range behind the file's last byte contains none of its data.
                let image_offset = Self::offset(position);
                parts.push(FrontPart { nid: placed.front_nid, original: placed.nid, range: part, image_offset });
            }
            position = end;
        }
        Ok((position > range.offset()).then_some(parts))
    }

    /// The parts of `range` that are known to be file data without a read of the original, as offsets in their file.
    pub fn file_data_in(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut parts: Vec<ByteRange> = Vec::new();
        let mut position = range.offset();
        while position < range.end()
            && let Some((run, is_file)) = self.run_at(position)
        {
            let end = range.end().min(run.end());
            if is_file {
                let part = ByteRange::new(Self::offset(position), end - position);
                match parts.last_mut() {
                    Some(last) if last.end() == part.offset() => *last = ByteRange::between(last.offset(), part.end()),
                    _ => parts.push(part),
                }
            }
            position = end;
        }
        parts
    }

    /// Whether a run is known to be file data without a read of the original.
    fn is_file_run(&self, run: &Run) -> bool {
        // Directories do not share the blocks of their inodes.
        let offset = run.metadata_block.checked_sub(META_BLOCK_64).and_then(|block| block.checked_mul(BLOCK_BYTES));
        match offset.and_then(|offset| self.view.shared.geometry.slot_at(offset)) {
            Some((slot, _)) if slot.class.stride() < BLOCK_BYTES => true,
            Some(_) => self.views.non_blocking.placed(run).is_ok_and(|placed| placed.is_file),
            None => false,
        }
    }

    /// Notes that the kernel reads `range`, and returns the ranges of metadata, in bytes, to store in its page cache
    /// ahead of its requests. The iterator reads the original and may wait.
    pub fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>> {
        // The kernel reads metadata page by page.
        if range.len() != BLOCK_BYTES || range.offset() >= LARGE_START || self.is_kept() {
            return None;
        }
        let block = range.offset() / BLOCK_BYTES;
        let readahead = &self.view.shared.readahead;
        let slot_in =
            |block: u64| self.view.shared.geometry.slot_at(block.checked_sub(META_BLOCK_64)?.checked_mul(BLOCK_BYTES)?);
        let (mut ahead, end) = match slot_in(block) {
            Some((Slot { class: class @ (Class::Root | Class::Page | Class::Misnumbered), number }, _)) => {
                let number = if class == Class::Root { self.root_number } else { number };
                let window = readahead.note_directory(number)?;
                return Some(Box::new(Descent::new(self.view.clone(), window)));
            }
            Some((Slot { class: Class::Dense | Class::Medium, .. }, _)) => (readahead.note_inodes(block)?, u64::MAX),
            Some(_) => return None,
            None => {
                let run = self.view.shared.addresses.find(block)?;
                // Directories do not share the blocks of their inodes.
                let (slot, _) = slot_in(run.metadata_block)?;
                if slot.class.stride() < BLOCK_BYTES || self.view.placed(&run).ok()?.is_file {
                    return None;
                }
                (readahead.note_block(block)?, run.end)
            }
        };
        let shared = Arc::clone(&self.view.shared);
        Some(Box::new(std::iter::from_fn(move || {
            let blocks = shared.readahead.take_blocks(&mut ahead).filter(|blocks| blocks.start < end)?;
            Some(ByteRange::between(blocks.start * BLOCK_BYTES, blocks.end.min(end) * BLOCK_BYTES))
        })))
    }

    /// Renders the metadata that the kernel reads when it finds the inode `nid` of the original by its name. File data that
    /// this metadata refers to then has addresses. Of a directory, all entries are rendered too.
    ///
    /// # Errors
    /// The original cannot be read now, or the inode breaks its format.
    pub fn render(&self, nid: Nid) -> Result<()> {
        if self.is_kept() {
            return Ok(());
        }
        let node = self.view.node(nid)?;
        let geometry = &self.view.shared.geometry;
        let first = META_BLOCK_64 + geometry.offset(node.slot) / BLOCK_BYTES;
        let blocks = if node.slot.class.stride() < BLOCK_BYTES { 1 } else { node.body_end().div_ceil(BLOCK_BYTES) };
        (first..first + blocks).try_for_each(|block| self.view.block(block).map(drop))?;
        if node.attr().file_type == FileType::Directory {
            let runs = self.view.shared.addresses.of(first);
            runs.iter().flat_map(|run| run.start..run.end).try_for_each(|block| self.view.block(block).map(drop))?;
        }
        Ok(())
    }

    /// The run of data with an address, by the addresses of its blocks, and the data.
    fn placed_at(&self, address: u64) -> Result<Option<(ByteRange, Placed)>> {
        match &self.kept {
            Some(kept) => {
                let run = kept.find(address / BLOCK_BYTES);
                run.map(|run| Ok((run.addresses(), self.view.kept_data(&run)?))).transpose()
            }
            None => {
                let run = self.rendered_run_at(address);
                run.map(|run| Ok((addresses_of(&run), self.view.placed(&run)?))).transpose()
            }
        }
    }

    /// The run of data with an address, and whether it is known to be file data without a read of the original.
    fn run_at(&self, address: u64) -> Option<(ByteRange, bool)> {
        if let Some(kept) = &self.kept {
            return kept.find(address / BLOCK_BYTES).map(|run| (run.addresses(), true));
        }
        self.rendered_run_at(address).map(|run| (addresses_of(&run), self.is_file_run(&run)))
    }

    fn rendered_run_at(&self, address: u64) -> Option<Run> {
        let block = address / BLOCK_BYTES;
        let has_data = (DATA_BLOCK_64..META_BLOCK_64).contains(&block) || block >= LARGE_BLOCK;
        has_data.then(|| self.view.shared.addresses.find(block)).flatten()
    }

    /// Appends the extents of a range of addresses.
    fn map_addresses(&self, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let end = range.end();
        let mut position = range.offset();
        while position < end {
            let area_end = match position >> BLOCK_LOG2 {
                0..DATA_BLOCK_64 if !self.is_kept() => DATA_BLOCK_64 << BLOCK_LOG2,
                0..META_BLOCK_64 | LARGE_BLOCK.. => {
                    let Some((run, placed)) = self.placed_at(position)? else {
                        if self.is_kept() {
                            return Err(unreadable());
                        }
                        // The kernel keeps the bytes in its page cache, so these addresses may never be assigned.
                        let (start, end) = (position / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
                        if !self.view.shared.addresses.retire(start, end) {
                            return Err(unreadable());
                        }
                        continue;
                    };
                    if placed.is_file {
                        let run_end = end.min(run.end());
                        self.map_run(run, &placed, ByteRange::between(position, run_end), extents)?;
                        position = run_end;
                        continue;
                    }
                    run.end()
                }
                _ => end,
            };
            let range = ByteRange::between(position, end.min(area_end));
            extents.push(Extent { range, data: ExtentData::Plain { device: self.rendered, offset: position } });
            position = range.end();
        }
        Ok(())
    }

    /// Appends the extents of `range`, which is within `run`.
    fn map_run(&self, run: ByteRange, placed: &Placed, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        // Translates to bytes of the file, and back.
        let (file_start, start) = (placed.range.offset(), run.offset());
        let wanted = ByteRange::new(range.offset() - start + file_start, range.len()).intersection(placed.range);
        let mut end = range.offset();
        if !wanted.is_empty() {
            let first = extents.len();
            self.view.file_system.map(placed.nid, wanted, extents)?;
            let mut index = first;
            while let Some(extent) = extents.get_mut(index) {
                let kept = extent.range.intersection(placed.range);
                let skipped = kept.offset() - extent.range.offset();
                extent.data = advance(extent.data, skipped).ok_or_else(unreadable)?;
                extent.range = ByteRange::new(kept.offset() - file_start + start, kept.len());
                end = extent.range.end();
                index += 1;
            }
        }
        // The rest of the last block is behind the end of the file.
        if end < range.end() {
            extents.push(Extent { range: ByteRange::between(end, range.end()), data: ExtentData::Hole });
        }
        Ok(())
    }
}

const DATA_BLOCK_64: u64 = DATA_BLOCK as u64;
const META_BLOCK_64: u64 = META_BLOCK as u64;

fn addresses_of(run: &Run) -> ByteRange {
    ByteRange::between(run.start_bytes(), run.end_bytes())
}

/// The location of the data `len` bytes after the start of `data`. `None` on overflow.
fn advance(data: ExtentData, len: u64) -> Option<ExtentData> {
    Some(match data {
        ExtentData::Hole => ExtentData::Hole,
        ExtentData::Plain { device, offset } => ExtentData::Plain { device, offset: offset.checked_add(len)? },
        ExtentData::Encoded { block, skip } => {
            ExtentData::Encoded { block, skip: skip.checked_add(u32::try_from(len).ok()?)? }
        }
    })
}
