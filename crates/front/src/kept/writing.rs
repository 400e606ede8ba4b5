//! Writes kept images.

mod file_data;

use std::{collections::HashMap, fs::File, ops::ControlFlow, os::unix::fs::FileExt, sync::Arc};

use floe_erofs::{
    format::INODE_SLOT_SIZE,
    write::{DirectoryEntry, InodeData, InodeForm, InodeRules, directory_bytes},
};
use floe_image::{Error, FileSystem, FileType, Nid};

use super::{
    checksum::checksum,
    compressed::CompressedFiles,
    entry::{Entry, EntryData},
    header::{HEADER_START, Header, Identity},
    image_file::ImageFile,
    metadata_file::MetadataFile,
    not_kept::NotKept,
    number_set::NumberSet,
    runs::KeptRuns,
    shared_xattrs::SharedXattrs,
};
use crate::{
    fault::lasting,
    geometry::{BLOCK_BYTES, KEPT_DATA_BLOCK},
    node::{Node, Xattrs, large_chunk},
    superblock::{KeptAreas, superblock},
    view::{Shared, View},
};

/// The number of directory entries after which the pace is asked again.
const ENTRIES_STEP: u64 = 64;

/// The nid of the root, as in the virtual image.
const ROOT_NID: u64 = 36;

/// The offset of the root.
const ROOT_START: u64 = HEADER_START + ROOT_NID * INODE_SLOT_SIZE;

/// Called often while an image is kept. It may wait, to give way to other work, and may end the work.
pub type Pace<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// A kept image that is being written.
struct Writing<'a> {
    view: View,
    rules: InodeRules,
    metadata: MetadataFile<'a>,
    bytes_max: u64,
    /// The original as a device of the kept image.
    image_file: Option<&'a ImageFile>,
    /// The number of its blocks up to the last one that was used.
    image_blocks: u32,
    compressed: CompressedFiles,
    /// The number of inodes that have no place yet.
    inodes_left: u64,
    runs: KeptRuns,
    xattrs: SharedXattrs,
    /// The numbers of all inodes that were named.
    named: NumberSet,
    /// The nids of those with several names, by their numbers.
    links: HashMap<u64, u64>,
    /// Directories that were named but have no place yet, the next one last.
    pending: Vec<Pending>,
    pace: Pace<'a>,
    entries_left: u64,
}

/// A directory without a place.
struct Pending {
    nid: Nid,
    /// The nid in the kept image of the directory that names it.
    parent: u64,
    /// The offset in the file of the entry that names it; `None` for the root.
    entry: Option<u64>,
}

/// The places of a directory: its inode with what follows it, and its blocks.
struct Places {
    head_len: u64,
    /// How many bytes of the head must be in one block.
    head_unit: u64,
    head: Option<u64>,
    block_count: u64,
    blocks: Option<u64>,
}

/// The target of an entry.
enum Target {
    /// The directory itself.
    Own,
    Inode(u64),
    /// A subdirectory that has no place yet.
    Later(Nid),
}

/// Writes the metadata of `original` to `file`, which is empty, as the kept image with this identity. It takes at most
/// `bytes_max` bytes there. With `image_file`, that is a device of the kept image.
///
/// The file becomes valid with the last write. Memory is limited by the number of inodes that fit in the file: about 16 bytes per
/// file, some more for those with several names, and 32 per directory whose turn has not come.
///
/// # Errors
/// The image is not kept.
pub fn keep(
    original: Arc<dyn FileSystem>,
    image_file: Option<&ImageFile>,
    file: &File,
    identity: &Identity,
    bytes_max: u64,
    pace: Pace<'_>,
) -> Result<(), NotKept> {
    let root = original.root();
    let (shared, node) = Shared::new(original.as_ref()).map_err(NotKept::Original)?;
    // The kernel's sum of the epoch and the age of a compact inode is the time of the epoch itself without the 48-bit layout.
    let rules = InodeRules { epoch: original.info().built, wide: false, form: InodeForm::Smallest };
    let inodes_left = original.info().inode_count;
    let mut writing = Writing {
        image_file,
        image_blocks: 0,
        compressed: CompressedFiles::default(),
        inodes_left,
        view: View { file_system: original, shared: Arc::new(shared), may_wait: true, non_blocking: None },
        rules,
        metadata: MetadataFile::new(file, ROOT_START, bytes_max),
        bytes_max,
        runs: KeptRuns::default(),
        xattrs: SharedXattrs::default(),
        named: NumberSet::default(),
        links: HashMap::new(),
        pending: vec![Pending { nid: root, parent: ROOT_NID, entry: None }],
        pace,
        entries_left: 0,
    };
    writing.named.insert(node.number);
    while let Some(directory) = writing.pending.pop() {
        writing.directory(&directory)?;
    }
    writing.finish(file, identity)
}

impl Writing<'_> {
    /// Writes a directory and the inodes of the files in it. Its subdirectories become pending.
    fn directory(&mut self, directory: &Pending) -> Result<(), NotKept> {
        let node = self.node(directory.nid)?;
        let size = sound(self.view.directory_size(&node))?;
        let xattrs = self.xattrs.body(body(&node));
        let record = node.record(InodeData::Flat { start_block: None, inline: false }, size);
        let body_len = record.len(&self.rules) + xattrs.len() as u64;
        let tail_len = size % BLOCK_BYTES;
        // The root has a fixed place.
        let room = if directory.entry.is_none() { self.metadata.room() } else { BLOCK_BYTES };
        let is_inline = tail_len > 0 && body_len + tail_len <= room;
        let mut places = Places {
            head_len: body_len + if is_inline { tail_len } else { 0 },
            head_unit: 0,
            head: None,
            block_count: if is_inline { size / BLOCK_BYTES } else { size.div_ceil(BLOCK_BYTES) },
            blocks: None,
        };
        places.head_unit = if places.head_len <= BLOCK_BYTES { places.head_len } else { record.len(&self.rules) };
        if directory.entry.is_none() {
            places.head = Some(self.metadata.take(places.head_len)?);
        }
        let first_pending = self.pending.len();
        for block in 0..size.div_ceil(BLOCK_BYTES) {
            let listing = sound(self.view.listing(&node, block))?;
            let mut targets = Vec::new();
            for (name, nid) in listing.entries() {
                targets.push(match name {
                    b"." => (Target::Own, FileType::Directory),
                    b".." => (Target::Inode(directory.parent), FileType::Directory),
                    _ => self.target(nid, &mut places)?,
                });
            }
            // The files of the first block have filled up a block of the file as far as they can.
            let (head, blocks) = self.place(&mut places, None)?;
            let start = if block < places.block_count { blocks + block * BLOCK_BYTES } else { head + body_len };
            let own = nid_at(head);
            let entries: Vec<_> = listing
                .entries()
                .zip(&targets)
                .map(|((name, _), (target, file_type))| DirectoryEntry {
                    name,
                    nid: match target {
                        Target::Own => own,
                        Target::Inode(nid) => *nid,
                        Target::Later(_) => 0,
                    },
                    file_type: *file_type,
                })
                .collect();
            self.metadata.put(start, &directory_bytes(&entries, BLOCK_BYTES))?;
            for ((target, _), index) in targets.iter().zip(0..) {
                if let Target::Later(nid) = target {
                    let entry = Some(start + index * floe_erofs::format::Dirent::SIZE as u64);
                    self.pending.push(Pending { nid: *nid, parent: own, entry });
                }
            }
        }
        if let Some(subdirectories) = self.pending.get_mut(first_pending..) {
            subdirectories.reverse();
        }
        let (head, blocks) = self.place(&mut places, None)?;
        let start_block = (places.block_count > 0).then_some(blocks / BLOCK_BYTES);
        let record = node.record(InodeData::Flat { start_block, inline: is_inline }, size);
        self.metadata.put(head, &[record.to_bytes(&self.rules, xattrs.len()), xattrs].concat())?;
        if let Some(entry) = directory.entry {
            self.metadata.put(entry, &nid_at(head).to_le_bytes())?;
        }
        Ok(())
    }

    /// The target of an entry of the directory with these places. The inode of a file is written, if no other name led to it
    /// before.
    fn target(&mut self, nid: Nid, places: &mut Places) -> Result<(Target, FileType), NotKept> {
        self.entries_left = match self.entries_left.checked_sub(1) {
            Some(left) => left,
            None if (self.pace)().is_break() => return Err(NotKept::Ended),
            None => ENTRIES_STEP,
        };
        let node = self.node(nid)?;
        let file_type = node.attr().file_type;
        let is_new = self.named.insert(node.number);
        if file_type == FileType::Directory {
            // The virtual image shows a placeholder for a directory that is named twice.
            return if is_new { Ok((Target::Later(nid), file_type)) } else { Err(NotKept::Broken) };
        }
        if !is_new {
            // An inode that states one name, but has several, is one inode only in the virtual image.
            let nid = self.links.get(&node.number).ok_or(NotKept::Broken)?;
            return Ok((Target::Inode(*nid), file_type));
        }
        let entry = self.entry(&node)?;
        self.inodes_left = self.inodes_left.saturating_sub(1);
        let start = match self.metadata.take_gap(entry.len) {
            Some(start) => start,
            None => {
                self.place(places, Some(entry.unit))?;
                if !self.metadata.fits(entry.unit) {
                    self.metadata.align()?;
                }
                self.metadata.take(entry.len)?
            }
        };
        self.write(&node, &entry, start)?;
        let nid = nid_at(start);
        if node.attr().link_count > 1 {
            self.links.insert(node.number, nid);
        }
        Ok((Target::Inode(nid), file_type))
    }

    /// Gives a directory its places, as far as they waste no room that an inode with `next` bytes in one block could take.
    /// Without a next one, it gets all. Returns the offsets of its inode and of its blocks.
    fn place(&mut self, places: &mut Places, next: Option<u64>) -> Result<(u64, u64), NotKept> {
        loop {
            if places.blocks.is_none() && (places.block_count == 0 || self.metadata.is_aligned()) {
                places.blocks = Some(self.metadata.take(places.block_count * BLOCK_BYTES)?);
            }
            if places.head.is_none() && self.metadata.fits(places.head_unit) {
                places.head = Some(self.metadata.take(places.head_len)?);
            }
            match (places.head, places.blocks) {
                (Some(head), Some(blocks)) => return Ok((head, blocks)),
                _ if next.is_some_and(|next| self.metadata.fits(next)) => return Ok((0, 0)),
                _ => self.metadata.align()?,
            }
        }
    }

    /// How the inode of a file is stored.
    fn entry(&mut self, node: &Node) -> Result<Entry, NotKept> {
        let attr = node.attr();
        let data = match attr.file_type {
            FileType::Regular => {
                let data = match node.chunk_map() {
                    Some(map) => EntryData::Chunks(map),
                    None if node.is_large() => EntryData::Large,
                    None => EntryData::Small,
                };
                let xattrs = self.xattrs.body(body(node));
                let data = self.data_in_image(node, xattrs.len() as u64)?.unwrap_or(data);
                return Ok(Entry::new(node, data, xattrs, &self.rules));
            }
            FileType::Symlink => {
                let target = sound(self.view.file_system.read_link(node.nid))?;
                EntryData::Target(
                    Some(target).filter(|target| target.len() as u64 == attr.size).ok_or(NotKept::Broken)?,
                )
            }
            _ => EntryData::Device(attr.device.encoded()),
        };
        Ok(Entry::new(node, data, self.xattrs.body(body(node)), &self.rules))
    }

    /// Writes the inode of a file at `start`, and gives addresses to its data.
    fn write(&mut self, node: &Node, entry: &Entry, start: u64) -> Result<(), NotKept> {
        let (size, front_nid) = (node.attr().size, u32::try_from(nid_at(start)).map_err(|_| NotKept::TooLarge)?);
        let flat = |start_block| InodeData::Flat { start_block, inline: false };
        let (mut tail, mut tail_start) = (Vec::new(), entry.body_len);
        let data = match &entry.data {
            EntryData::Device(number) => InodeData::Device(*number),
            EntryData::Small if size == 0 => flat(None),
            EntryData::Small => {
                let first = self.runs.assign(node.nid, front_nid, 0, size).ok_or(NotKept::TooLarge)?;
                flat(Some(u64::from(KEPT_DATA_BLOCK) + u64::from(first)))
            }
            EntryData::Plain(plain) => {
                let blocks = size - plain.tail.len() as u64;
                let address = |block: u32| self.image_address(block, blocks.div_ceil(BLOCK_BYTES)).into();
                tail.clone_from(&plain.tail);
                InodeData::Flat { start_block: plain.start_block.map(address), inline: !tail.is_empty() }
            }
            EntryData::Compressed(file) => {
                (tail, tail_start) = (file.map_bytes(entry.tail_start), entry.tail_start);
                entry.data.form(size)
            }
            EntryData::Large => {
                let first = self.runs.assign_large(node.nid, front_nid, size).ok_or(NotKept::TooLarge)?;
                (tail, tail_start) = (large_chunk(first).to_vec(), entry.tail_start);
                entry.data.form(size)
            }
            EntryData::Chunks(map) => {
                self.write_chunks(node, *map, front_nid, start + entry.tail_start)?;
                entry.data.form(size)
            }
            EntryData::Target(target) if target.is_empty() => flat(None),
            EntryData::Target(target) if entry.is_inline() => {
                tail.clone_from(target);
                InodeData::Flat { start_block: None, inline: true }
            }
            EntryData::Target(target) => {
                self.metadata.align()?;
                let block = self.metadata.take(BLOCK_BYTES)?;
                self.metadata.put(block, target)?;
                flat(Some(block / BLOCK_BYTES))
            }
        };
        let mut bytes = node.record(data, size).to_bytes(&self.rules, entry.xattrs.len());
        bytes.extend(&entry.xattrs);
        bytes.resize(tail_start as usize, 0);
        bytes.extend(tail);
        Ok(self.metadata.put(start, &bytes)?)
    }

    fn node(&self, nid: Nid) -> Result<Node, NotKept> {
        let node = sound(self.view.node(nid))?;
        if node.xattrs == Xattrs::Broken { Err(NotKept::Broken) } else { Ok(node) }
    }

    /// Writes the shared attributes, the index, the superblock and, at last, the header.
    fn finish(mut self, file: &File, identity: &Identity) -> Result<(), NotKept> {
        self.metadata.align()?;
        let table = self.xattrs.table();
        let table_start = self.metadata.take(table.len() as u64)?;
        self.metadata.put(table_start, table)?;
        self.metadata.flush()?;
        let index_start = self.metadata.end();
        let len = (index_start + self.runs.stored_bytes()).next_multiple_of(BLOCK_BYTES);
        if len > self.bytes_max {
            return Err(NotKept::TooLarge);
        }
        let index = self.runs.write(file, index_start)?;
        let image_blocks = self.image_blocks.max(self.compressed.image_blocks() as u32);
        let areas = KeptAreas {
            data_blocks: self.runs.image_block_count(),
            image_blocks: self.image_file.map(|_| image_blocks),
            algorithms: self.compressed.configurations().to_vec(),
            xattr_block: if table.is_empty() { 0 } else { (table_start / BLOCK_BYTES) as u32 },
        };
        file.write_all_at(&superblock(&self.view.file_system.info(), ROOT_NID, Some(&areas)), 0)?;
        file.set_len(len)?;
        let decodes = !self.compressed.configurations().is_empty();
        let header = Header { identity: *identity, len, checksum: checksum(file, len)?, image_blocks, decodes, index };
        Ok(file.write_all_at(&header.to_bytes(), HEADER_START)?)
    }
}

/// The nid of the inode at this offset.
fn nid_at(offset: u64) -> u64 {
    (offset - HEADER_START) / INODE_SLOT_SIZE
}

/// The extended attributes of an inode, inline.
fn body(node: &Node) -> Vec<u8> {
    match &node.xattrs {
        Xattrs::Body(body) => body.clone(),
        Xattrs::Broken => Vec::new(),
    }
}

/// The value of `answer`. A permanent error is [`NotKept::Broken`].
fn sound<T>(answer: Result<T, Error>) -> Result<T, NotKept> {
    lasting(answer).map_err(NotKept::Original)?.ok_or(NotKept::Broken)
}
