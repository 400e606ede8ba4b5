//! The content of directories.

use std::{ops::ControlFlow, ops::Range, sync::Arc};

use floe_erofs::{
    format::Dirent as RawDirent,
    write::{DirectoryEntry, directory_bytes},
};
use floe_image::{DirectoryCursor, Error, FileType, Nid, Place, Result};

use crate::{
    fault::{lasting, unreadable},
    geometry::{BLOCK_BYTES, Class, Slot},
    node::{Node, number_of},
    packed_directories::{PackedDirectory, Sorted},
    view::View,
};

/// The largest directory that a non-blocking view reads whole.
const NON_BLOCKING_BYTES_MAX: u64 = 64 << 10;

/// The maximum number of subdirectories of one directory that are read ahead.
const CHILDREN_MAX: usize = 4096;

/// The longest name to which a slash can be appended.
const MARKED_NAME_BYTES_MAX: usize = 254;

/// How the entries of a directory are stored.
pub(crate) enum DirectoryContent {
    /// The bytes behind the inode.
    Inline(Vec<u8>),
    /// The size in bytes of entries in a run of blocks.
    Blocks(u64),
    /// They cannot be read.
    Broken,
}

/// The inode that a rendered entry refers to.
struct Target {
    /// Its nid in the virtual image.
    nid: u64,
    file_type: FileType,
    /// The inode of the original, if its block has other inodes too. Those of others can have 256 KiB of attributes each.
    node: Option<Node>,
}

/// The entries of one block of a directory.
#[derive(Default)]
pub(crate) struct Listing {
    names: Vec<u8>,
    entries: Vec<(Range<usize>, Nid)>,
}

impl Listing {
    fn push(&mut self, name: &[u8], nid: Nid) {
        let start = self.names.len();
        self.names.extend(name);
        self.entries.push((start..self.names.len(), nid));
    }

    /// The names in their order, with the inodes of the original.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (&[u8], Nid)> {
        self.entries.iter().map(|(name, nid)| (self.names.get(name.clone()).unwrap_or_default(), *nid))
    }

    fn first(&self) -> &[u8] {
        self.entries().next().map_or(&[], |(name, _)| name)
    }

    fn last(&self) -> &[u8] {
        self.entries().next_back().map_or(&[], |(name, _)| name)
    }

    /// The size of a block with these entries in bytes.
    fn len(&self) -> u64 {
        (self.names.len() + self.entries.len() * RawDirent::SIZE) as u64
    }

    fn is_sorted(&self) -> bool {
        self.entries().zip(self.entries().skip(1)).all(|((name, _), (next, _))| name < next)
    }
}

impl View {
    /// Passes the subdirectories of directory `number` to metadata readahead, as far as they can be read.
    pub(crate) fn learn_children(&self, number: u64) {
        let readahead = &self.shared.readahead;
        if readahead.knows(number) {
            return;
        }
        let (mut children, geometry) = (Vec::new(), &self.shared.geometry);
        let file_system = self.file_system.as_ref();
        let nid = geometry.misnumbered_nid(number).or_else(|| file_system.find_number(number).ok().flatten());
        if let Some(nid) = nid {
            // Errors are ignored: a reader of the directory receives them.
            let _ = file_system.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                let is_child = dirent.file_type == FileType::Directory && dirent.name != b"." && dirent.name != b"..";
                let number = is_child.then(|| number_of(file_system, geometry, dirent.nid, dirent.inode_number).ok());
                children.extend(number.flatten());
                if children.len() < CHILDREN_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        readahead.note_children(number, children);
    }

    /// How the entries of directory `node` are stored, if `room` bytes behind its inode are free.
    ///
    /// # Errors
    /// The original cannot be read now.
    pub(crate) fn directory_content(&self, node: &Node, room: u64) -> Result<DirectoryContent> {
        let content = match has_blocks_to_keep(node) {
            true => self.kept_directory_content(node, room),
            false => self.packed_directory_content(node, room),
        };
        Ok(lasting(content)?.unwrap_or(DirectoryContent::Broken))
    }

    fn kept_directory_content(&self, node: &Node, room: u64) -> Result<DirectoryContent> {
        let size = node.attr().size;
        if size == 0 {
            return Ok(DirectoryContent::Inline(Vec::new()));
        }
        if size > room {
            self.sound_kept_block(node, 0)?;
            return Ok(DirectoryContent::Blocks(size));
        }
        let mut bytes = self.directory_block(node, 0)?;
        bytes.resize(size as usize, 0);
        Ok(DirectoryContent::Inline(bytes))
    }

    fn packed_directory_content(&self, node: &Node, room: u64) -> Result<DirectoryContent> {
        let directory = self.packed_directory(node)?;
        if directory.size <= room && directory.is_single_block() {
            return self.packed_block(node, &directory, 0).map(DirectoryContent::Inline);
        }
        self.shared.packed_directories.keep(node.nid, &directory);
        Ok(DirectoryContent::Blocks(directory.size))
    }

    /// The used bytes of block `block` of directory `node`.
    ///
    /// # Errors
    /// The block cannot be read or breaks the original's format.
    pub(crate) fn directory_block(&self, node: &Node, block: u64) -> Result<Vec<u8>> {
        if !has_blocks_to_keep(node) {
            let directory = self.packed_directory(node)?;
            self.shared.packed_directories.keep(node.nid, &directory);
            return self.packed_block(node, &directory, block);
        }
        let listing = self.sound_kept_block(node, block)?;
        let is_last = block + 1 >= node.attr().size.div_ceil(BLOCK_BYTES);
        let next_is_broken =
            !is_last && lasting(self.kept_block(node, block + 1))?.is_none_or(|next| next.first() <= listing.last());
        self.directory_bytes(node, &listing, next_is_broken)
    }

    /// The size of directory `node` in the virtual image.
    ///
    /// # Errors
    /// The directory cannot be read or breaks the original's format.
    pub(crate) fn directory_size(&self, node: &Node) -> Result<u64> {
        if has_blocks_to_keep(node) {
            return Ok(node.attr().size);
        }
        let directory = self.packed_directory(node)?;
        self.shared.packed_directories.keep(node.nid, &directory);
        Ok(directory.size)
    }

    /// The entries of block `block` of directory `node`.
    ///
    /// # Errors
    /// The block cannot be read or breaks the original's format.
    pub(crate) fn listing(&self, node: &Node, block: u64) -> Result<Listing> {
        match has_blocks_to_keep(node) {
            true => self.sound_kept_block(node, block),
            false => self.packed_listing(node, &*self.packed_directory(node)?, block),
        }
    }

    /// The entries of a block of the original, which stay in one block of the virtual image.
    fn kept_block(&self, node: &Node, block: u64) -> Result<Listing> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(node.nid));
        let start = block * BLOCK_BYTES;
        let end = node.attr().size.min(start + BLOCK_BYTES);
        let mut listing = Listing::default();
        self.file_system.read_dir(node.nid, DirectoryCursor(start), &mut |dirent| {
            listing.push(dirent.name, dirent.nid);
            if dirent.next.0 >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if listing.entries.is_empty() || listing.len() > end - start {
            return Err(corrupt("names of a directory block overlap"));
        }
        if !listing.is_sorted() {
            return Err(corrupt("directory is not sorted, or has a name twice"));
        }
        Ok(listing)
    }

    /// Like [`View::kept_block`], and checks that the names follow those of the block before it.
    fn sound_kept_block(&self, node: &Node, block: u64) -> Result<Listing> {
        let listing = self.kept_block(node, block)?;
        let previous = block.checked_sub(1).map(|previous| lasting(self.kept_block(node, previous))).transpose()?;
        if previous.flatten().is_some_and(|previous| previous.last() >= listing.first()) {
            return Err(Error::corrupt("directory is not sorted, or has a name twice", Place::inode(node.nid)));
        }
        Ok(listing)
    }

    fn packed_directory(&self, node: &Node) -> Result<Arc<PackedDirectory>> {
        if let Some(directory) = self.shared.packed_directories.kept(node.nid) {
            return Ok(directory);
        }
        if !self.may_wait && node.attr().size > NON_BLOCKING_BYTES_MAX {
            return Err(Error::WouldBlock);
        }
        PackedDirectory::new(self.file_system.as_ref(), node.nid).map(Arc::new)
    }

    fn packed_block(&self, node: &Node, directory: &PackedDirectory, block: u64) -> Result<Vec<u8>> {
        let listing = self.packed_listing(node, directory, block)?;
        self.directory_bytes(node, &listing, false)
    }

    fn packed_listing(&self, node: &Node, directory: &PackedDirectory, block: u64) -> Result<Listing> {
        let mut listing = Listing::default();
        let each = &mut |entry: Sorted<'_>| listing.push(entry.name, entry.nid);
        directory.visit_block(self.file_system.as_ref(), node.nid, block, each)?;
        Ok(listing)
    }

    /// The bytes of a block with these entries. If the next block is broken, the last entry has a name with a slash: the
    /// kernel's `getdents` fails there, before it reads the broken block and logs it.
    fn directory_bytes(&self, node: &Node, listing: &Listing, next_is_broken: bool) -> Result<Vec<u8>> {
        let targets = self.entry_targets(node, listing)?;
        self.assign_listed(targets.iter().filter_map(|target| target.node.as_ref()));
        let entry = |((name, _), Target { nid, file_type, .. })| DirectoryEntry { name, nid, file_type };
        let mut entries: Vec<_> = listing.entries().zip(targets).map(entry).collect();
        let geometry = &self.shared.geometry;
        self.shared.readahead.note_listed(entries.iter().filter_map(|entry| geometry.shared_block_of(entry.nid)));
        let mut mark = Vec::new();
        if next_is_broken {
            let (last, _) = listing.entries().next_back().ok_or_else(unreadable)?;
            mark.extend(last.get(..last.len().min(MARKED_NAME_BYTES_MAX)).unwrap_or_default());
            mark.push(b'/');
            let mut len = listing.len() + (RawDirent::SIZE + mark.len()) as u64;
            while len > BLOCK_BYTES || entries.last().is_some_and(|entry| entry.name >= mark.as_slice()) {
                let dropped = entries.pop().ok_or_else(unreadable)?;
                len -= (RawDirent::SIZE + dropped.name.len()) as u64;
            }
            let nid = self.shared.geometry.nid(Slot { class: Class::BrokenFile, number: 0 }, 0);
            entries.push(DirectoryEntry { name: &mark, nid, file_type: FileType::Regular });
        }
        Ok(directory_bytes(&entries, BLOCK_BYTES))
    }

    /// [`View::entry_target`] for each entry of `listing`. Entries are first tried without waiting: a non-blocking read
    /// that fails starts the kernel's readahead, so the source is asked for all entries at once.
    fn entry_targets(&self, directory: &Node, listing: &Listing) -> Result<Vec<Target>> {
        let non_blocking = self.non_blocking_view();
        let early: Vec<_> = listing
            .entries()
            .map(|(name, nid)| non_blocking.as_ref()?.entry_target(directory, name, nid).ok())
            .collect();
        let complete = |((name, nid), early)| match early {
            Some(target) => Ok(target),
            None => self.entry_target(directory, name, nid),
        };
        listing.entries().zip(early).map(complete).collect()
    }

    /// The target of entry `name` of `directory`. In the original, the entry refers to `nid`.
    fn entry_target(&self, directory: &Node, name: &[u8], nid: Nid) -> Result<Target> {
        match name {
            b"." => Ok(Target::directory(self.virtual_nid(directory))),
            b".." => Ok(Target::directory(self.parent(directory)?)),
            _ => self.child(directory, nid),
        }
    }

    /// The virtual nid for `..`: that of the root if the original's `..` is no directory.
    fn parent(&self, directory: &Node) -> Result<u64> {
        let root = self.file_system.root();
        let parent = match directory.nid == root {
            true => None,
            false => lasting(self.file_system.lookup(directory.nid, b".."))?.flatten(),
        };
        let node = parent.map(|parent| lasting(self.node(parent))).transpose()?.flatten();
        match node.filter(|node| node.attr().file_type == FileType::Directory) {
            Some(node) => Ok(self.virtual_nid(&node)),
            None => Ok(self.virtual_nid(&self.node(root)?)),
        }
    }

    /// The target of an entry of `directory`. A directory that belongs to another one counts as broken, so there are no cycles.
    /// Its own `..` is not compared: it is in its first block, so a directory with many subdirectories would cost a read of
    /// each.
    fn child(&self, directory: &Node, nid: Nid) -> Result<Target> {
        let geometry = &self.shared.geometry;
        let Some(child) = lasting(self.node(nid))? else {
            let nid = geometry.nid(Slot { class: Class::BrokenFile, number: 0 }, 0);
            return Ok(Target { nid, file_type: FileType::Regular, node: None });
        };
        let file_type = child.attr().file_type;
        if file_type != FileType::Directory {
            let is_shared = child.slot.class.stride() < BLOCK_BYTES;
            return Ok(Target { nid: self.virtual_nid(&child), file_type, node: Some(child).filter(|_| is_shared) });
        }
        let is_ours = nid != self.file_system.root() && self.shared.parents.claim(child.number, directory.number);
        let broken = Slot { class: Class::BrokenDirectory, number: child.number };
        Ok(Target::directory(if is_ours { self.virtual_nid(&child) } else { geometry.nid(broken, 0) }))
    }
}

impl Target {
    fn directory(nid: u64) -> Self {
        Self { nid, file_type: FileType::Directory, node: None }
    }
}

/// Whether the virtual image keeps the directory blocks of the original, with other inode numbers.
pub(crate) fn has_blocks_to_keep(node: &Node) -> bool {
    node.outline.directory_block.is_some_and(|block| block.get() == BLOCK_BYTES)
}
