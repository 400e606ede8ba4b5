//! The blocks of the virtual image that are not file data.

use std::collections::{HashMap, HashSet};

use floe_erofs::write::{DirectoryEntry, InodeData, directory_bytes};
use floe_image::{ByteRange, Extent, ExtentData, FileType, Result};

use crate::{
    addresses::{Device, RETIRED, Run, Wanted},
    directory::DirectoryContent,
    fault::{lasting, unreadable},
    geometry::{
        BLOCK_BYTES, BROKEN_DIRECTORY_BLOCK, BROKEN_DIRECTORY_BYTES, Class, DATA_BLOCK, DEAD_BLOCK, META_BLOCK, Slot,
    },
    node::{ChunkMap, INODE_BYTES, Node, Xattrs, broken_inode},
    view::{Placed, View},
};

/// The bytes of a file with holes that one call of `map` covers.
const MAP_STEP_BYTES: u64 = 64 << 20;

/// The entry of a chunk that is a hole.
pub(crate) const HOLE: u32 = u32::MAX;

/// An inode and its data.
struct Shape {
    node: Node,
    content: Content,
}

/// How the data of an inode is stored.
pub(crate) enum Content {
    /// A device number; 0 for fifos and sockets.
    Device(u32),
    /// The bytes behind the inode.
    Inline(Vec<u8>),
    /// The size in bytes of data in one run of blocks.
    Blocks(u64),
    /// The size in bytes of data in one run of blocks of the large file.
    Large(u64),
    /// Runs of chunks.
    Chunks(ChunkMap),
    /// A directory that cannot be read.
    BrokenDirectory,
    /// A symbolic link that cannot be read.
    BrokenLink,
}

impl View {
    /// Renders block `number` of the virtual image, which must not be file data.
    ///
    /// # Errors
    /// The original cannot be read now, the block can never be read, or its addresses are not assigned.
    pub(crate) fn block(&self, number: u64) -> Result<Vec<u8>> {
        let mut bytes = match u32::try_from(number) {
            Ok(0) => Ok(self.shared.superblock.clone()),
            Ok(BROKEN_DIRECTORY_BLOCK) => Ok(self.broken_directory_block()),
            Ok(1..BROKEN_DIRECTORY_BLOCK) => Ok(Vec::new()),
            Ok(BROKEN_DIRECTORY_BLOCK..DATA_BLOCK) => Err(unreadable()),
            Ok(block @ DATA_BLOCK..META_BLOCK) => self.content_block(block),
            _ => self.metadata_block(number),
        }?;
        bytes.resize(BLOCK_BYTES as usize, 0);
        Ok(bytes)
    }

    /// Returns the data to which the addresses of `run` are assigned.
    ///
    /// # Errors
    /// The original cannot be read now.
    pub(crate) fn placed(&self, run: &Run) -> Result<Placed> {
        if run.metadata_block == RETIRED {
            let nothing = ByteRange::new(0, 0);
            return Ok(Placed { nid: self.file_system.root(), front_nid: 0, range: nothing, is_file: true });
        }
        // The data of a run never changes.
        self.shared.placed.get_or(run.start, || self.find_placed(run))
    }

    /// [`View::placed`] for a run that belongs to data.
    fn find_placed(&self, run: &Run) -> Result<Placed> {
        let offset = (run.metadata_block - u64::from(META_BLOCK)) * BLOCK_BYTES;
        let (mut slot, within) = self.shared.geometry.slot_at(offset).ok_or_else(unreadable)?;
        let is_shared = slot.class.stride() < BLOCK_BYTES;
        if is_shared {
            slot.number += u64::from(run.item);
        }
        let node = self.node_in(slot)?.ok_or_else(unreadable)?;
        let run_len = run.end_bytes() - run.start_bytes();
        let (offset, size) = match (node.attr().file_type, node.chunk_map()) {
            (FileType::Directory, _) => (0, run_len),
            (_, Some(map)) => {
                let chunk = map.chunks_of_block(within / BLOCK_BYTES).start + u64::from(run.item);
                (chunk << map.chunk_log2, node.attr().size)
            }
            _ => (0, node.attr().size),
        };
        let range = ByteRange::between(offset, size.min(offset.saturating_add(run_len)));
        let front_nid = self.shared.geometry.nid(node.slot, node.within());
        Ok(Placed { nid: node.nid, front_nid, range, is_file: node.attr().file_type == FileType::Regular })
    }

    /// A block of a directory, or of a long symbolic link.
    fn content_block(&self, block: u32) -> Result<Vec<u8>> {
        let run = self.shared.addresses.find(block.into()).ok_or_else(unreadable)?;
        let placed = self.placed(&run)?;
        let node = self.node(placed.nid)?;
        match node.attr().file_type {
            FileType::Directory => self.directory_block(&node, u64::from(block) - run.start),
            FileType::Symlink => self.file_system.read_link(node.nid),
            _ => Err(unreadable()),
        }
    }

    fn broken_directory_block(&self) -> Vec<u8> {
        let nid = self.shared.geometry.nid(Slot { class: Class::BrokenFile, number: 0 }, 0);
        directory_bytes(&[DirectoryEntry { name: b"\x01/", nid, file_type: FileType::Regular }], BLOCK_BYTES)
    }

    fn metadata_block(&self, number: u64) -> Result<Vec<u8>> {
        let offset = (number - u64::from(META_BLOCK)) * BLOCK_BYTES;
        let Some((slot, within)) = self.shared.geometry.slot_at(offset) else { return Err(unreadable()) };
        match slot.class {
            Class::BrokenFile => Ok(broken_file()),
            Class::BrokenDirectory => Ok(broken_directory().repeat((BLOCK_BYTES / slot.class.stride()) as usize)),
            Class::Dense | Class::Medium => self.shared_block(number, slot),
            Class::Root | Class::Page | Class::Huge | Class::Misnumbered => {
                self.own_block(number, slot, within / BLOCK_BYTES)
            }
        }
    }

    /// A block with several inodes, the first in slot `first`. The slot of a number without an inode of this class is zeros.
    fn shared_block(&self, number: u64, first: Slot) -> Result<Vec<u8>> {
        let stride = first.class.stride();
        let mut shapes = Vec::new();
        let possible = lasting(self.file_system.possible_numbers(first.number))?.unwrap_or(u64::MAX);
        for item in 0..(BLOCK_BYTES / stride) as u32 {
            let slot = Slot { number: first.number + u64::from(item), ..first };
            if possible >> item & 1 != 0
                && slot.number <= self.shared.geometry.number_max()
                && let Some(node) = self.node_in(slot)?
            {
                let content = self.content(&node)?;
                shapes.push((item, Shape { node, content }));
            }
        }
        let mut starts = HashMap::new();
        for device in [Device::Image, Device::Listings, Device::Large] {
            let wanted: Vec<Wanted> = shapes
                .iter()
                .filter(|(_, shape)| shape.content.device(shape.node.attr().file_type) == device)
                .filter_map(|(item, shape)| shape.content.wanted(number, *item))
                .collect();
            let assigned = self.shared.addresses.assign(device, &wanted);
            starts.extend(wanted.iter().zip(assigned).filter_map(|(wanted, start)| Some((wanted.item, start?))));
        }
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        for (item, shape) in shapes {
            put(&mut bytes, u64::from(item) * stride, &shape.to_bytes(starts.get(&item).copied()));
        }
        Ok(bytes)
    }

    /// Block `block` of `slot`, whose inode shares it with no other. `number` is its number in the virtual image.
    fn own_block(&self, number: u64, slot: Slot, block: u64) -> Result<Vec<u8>> {
        let Some(node) = self.node_in(slot)? else { return Ok(Vec::new()) };
        if node.xattrs == Xattrs::Broken && block == 1 {
            return Err(unreadable());
        }
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let content = self.content(&node)?;
        let (within, block_start) = (node.within(), block * BLOCK_BYTES);
        if let Content::Chunks(map) = content {
            self.put_chunks(number, block, &node, map, &mut bytes)?;
        }
        // The inode begins in the first block.
        let wanted = content.wanted(number - block, 0);
        let device = content.device(node.attr().file_type);
        let assign = |wanted| self.shared.addresses.assign(device, &[wanted]);
        let start = wanted.and_then(|wanted| assign(wanted).first().copied()?);
        let inode = Shape { node, content }.to_bytes(start);
        match block_start.checked_sub(within) {
            None => put(&mut bytes, within, &inode),
            Some(skipped) => put(&mut bytes, 0, inode.get(skipped as usize..).unwrap_or_default()),
        }
        Ok(bytes)
    }

    /// Writes the entries of the chunk map in block `block` of the slot of `node` to `bytes`.
    fn put_chunks(&self, number: u64, block: u64, node: &Node, map: ChunkMap, bytes: &mut [u8]) -> Result<()> {
        let chunks = map.chunks_of_block(block);
        let runs = self.data_runs(node, map, chunks.clone())?;
        let chunk_end = |chunk: u64| node.attr().size.min((chunk + 1) << map.chunk_log2);
        let wanted: Vec<Wanted> = runs
            .iter()
            .map(|run| Wanted {
                metadata_block: number,
                item: (run.start - chunks.start) as u32,
                block_count: (chunk_end(run.end - 1) - (run.start << map.chunk_log2)).div_ceil(BLOCK_BYTES),
            })
            .collect();
        let starts = self.shared.addresses.assign(Device::Image, &wanted);
        let first = map.start.max(block * BLOCK_BYTES) - block * BLOCK_BYTES;
        for chunk in chunks.clone() {
            put(bytes, first + (chunk - chunks.start) * 4, &HOLE.to_le_bytes());
        }
        for (run, start) in runs.into_iter().zip(starts) {
            let start = start.ok_or_else(unreadable)?;
            for chunk in run.clone() {
                let address = u64::from(start) + ((chunk - run.start) << map.chunk_log2) / BLOCK_BYTES;
                put(bytes, first + (chunk - chunks.start) * 4, &(address as u32).to_le_bytes());
            }
        }
        Ok(())
    }

    /// The runs of chunks in `chunks` with data.
    pub(crate) fn data_runs(
        &self,
        node: &Node,
        map: ChunkMap,
        chunks: std::ops::Range<u64>,
    ) -> Result<Vec<std::ops::Range<u64>>> {
        let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
        let end = node.attr().size.min(chunks.end << map.chunk_log2);
        let mut position = chunks.start << map.chunk_log2;
        let mut extents: Vec<Extent> = Vec::new();
        while position < end {
            let step = ByteRange::between(position, end.min(position.saturating_add(MAP_STEP_BYTES)));
            extents.clear();
            self.file_system.map(node.nid, step, &mut extents)?;
            // A chunk with one byte of data is data.
            for extent in extents.iter().filter(|extent| extent.data != ExtentData::Hole) {
                let data = extent.range.intersection(step);
                let (first, last) = (data.offset() >> map.chunk_log2, (data.end() - 1) >> map.chunk_log2);
                match runs.last_mut() {
                    Some(run) if run.end >= first => run.end = run.end.max(last + 1),
                    _ => runs.push(first..last + 1),
                }
            }
            position = extents.last().map_or(step.end(), |last| last.range.end()).max(step.end());
        }
        Ok(runs)
    }

    /// Assigns addresses to the data of those of `nodes` that are regular files whose inodes share blocks, in the order of `nodes`.
    pub(crate) fn assign_listed<'node>(&self, nodes: impl Iterator<Item = &'node Node>) {
        let geometry = &self.shared.geometry;
        let (mut image, mut large) = (Vec::new(), Vec::new());
        // A directory can name an inode several times.
        let mut named = HashSet::new();
        for node in nodes {
            let (class, file_type) = (node.slot.class, node.attr().file_type);
            let is_shared = matches!(class, Class::Dense | Class::Medium);
            if !is_shared || file_type != FileType::Regular || !named.insert(node.nid) {
                continue;
            }
            let (offset, content) = (geometry.offset(node.slot), Content::of_regular(node));
            let (number, item) = (u64::from(META_BLOCK) + offset / BLOCK_BYTES, offset % BLOCK_BYTES / class.stride());
            let device = if content.device(file_type) == Device::Image { &mut image } else { &mut large };
            device.extend(content.wanted(number, item as u32));
        }
        self.shared.addresses.assign(Device::Image, &image);
        self.shared.addresses.assign(Device::Large, &large);
    }

    pub(crate) fn content(&self, node: &Node) -> Result<Content> {
        let attr = node.attr();
        Ok(match attr.file_type {
            FileType::Regular => Content::of_regular(node),
            FileType::Directory => match self.directory_content(node, node.room())? {
                DirectoryContent::Inline(bytes) => Content::Inline(bytes),
                DirectoryContent::Blocks(size) => Content::Blocks(size),
                DirectoryContent::Broken => Content::BrokenDirectory,
            },
            FileType::Symlink => {
                let target = lasting(self.file_system.read_link(node.nid))?;
                match target.filter(|target| target.len() as u64 == attr.size) {
                    Some(target) if attr.size <= node.room() => Content::Inline(target),
                    Some(_) => Content::Blocks(attr.size),
                    None => Content::BrokenLink,
                }
            }
            _ => Content::Device(attr.device.encoded()),
        })
    }
}

impl Content {
    /// How the data of a regular file is stored.
    fn of_regular(node: &Node) -> Self {
        match node.chunk_map() {
            Some(map) => Self::Chunks(map),
            None if node.is_large() => Self::Large(node.attr().size),
            None => Self::Blocks(node.attr().size),
        }
    }

    /// The addresses that the inode itself needs, as item `item` of its metadata block.
    fn wanted(&self, metadata_block: u64, item: u32) -> Option<Wanted> {
        match self {
            Self::Blocks(size) | Self::Large(size) if *size != 0 => {
                Some(Wanted { metadata_block, item, block_count: size.div_ceil(BLOCK_BYTES) })
            }
            _ => None,
        }
    }

    /// The device with these blocks, of an inode of this type.
    fn device(&self, file_type: FileType) -> Device {
        match self {
            Self::Large(_) => Device::Large,
            _ if file_type == FileType::Regular => Device::Image,
            _ => Device::Listings,
        }
    }
}

impl Shape {
    /// The bytes of the inode, its extended attributes and its inline data, for other data from block `start` on.
    fn to_bytes(&self, start: Option<u32>) -> Vec<u8> {
        let size = self.node.attr().size;
        let flat = |start: u32| InodeData::Flat { start_block: Some(start.into()), inline: false };
        let none = InodeData::Flat { start_block: None, inline: false };
        match (&self.content, start) {
            (Content::Device(number), _) => self.node.to_bytes(InodeData::Device(*number), size),
            (Content::Inline(tail), _) if tail.is_empty() => self.node.to_bytes(none, 0),
            (Content::Inline(tail), _) => {
                let data = InodeData::Flat { start_block: None, inline: true };
                [self.node.to_bytes(data, tail.len() as u64), tail.clone()].concat()
            }
            (Content::Blocks(size), Some(start)) => self.node.to_bytes(flat(start), *size),
            (Content::Blocks(0), None) => self.node.to_bytes(none, 0),
            // No addresses are left.
            (Content::Blocks(_), None) if self.node.attr().file_type == FileType::Directory => broken_directory(),
            (Content::Blocks(_) | Content::Large(_), None) => broken_file(),
            (Content::Large(_), Some(start)) => self.node.large_to_bytes(start),
            (Content::Chunks(map), _) => self.node.to_bytes(InodeData::Chunked { format: map.format() }, size),
            (Content::BrokenDirectory, _) => self.node.to_bytes(flat(BROKEN_DIRECTORY_BLOCK), BROKEN_DIRECTORY_BYTES),
            (Content::BrokenLink, _) => self.node.to_bytes(flat(DEAD_BLOCK), size.clamp(1, BLOCK_BYTES - 1)),
        }
    }
}

/// The placeholder for a file that cannot be read.
fn broken_file() -> Vec<u8> {
    let data = InodeData::Flat { start_block: Some(DEAD_BLOCK.into()), inline: false };
    broken_inode(FileType::Regular, data, BLOCK_BYTES)
}

/// The placeholder for a directory that cannot be read.
fn broken_directory() -> Vec<u8> {
    let data = InodeData::Flat { start_block: Some(BROKEN_DIRECTORY_BLOCK.into()), inline: false };
    let inode = broken_inode(FileType::Directory, data, BROKEN_DIRECTORY_BYTES);
    debug_assert_eq!(inode.len() as u64, INODE_BYTES);
    inode
}

/// Copies `part` to `bytes` at `offset`, up to the end of `bytes`.
fn put(bytes: &mut [u8], offset: u64, part: &[u8]) {
    let room = usize::try_from(offset).ok().and_then(|offset| bytes.get_mut(offset..)).unwrap_or_default();
    for (byte, given) in room.iter_mut().zip(part) {
        *byte = *given;
    }
}
