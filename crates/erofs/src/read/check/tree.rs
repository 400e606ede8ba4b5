//! The walk of the tree.

use std::{borrow::Cow, cmp::Ordering, collections::HashMap};

use floe_image::{ByteRange, DeviceId, Error, FileType, Nid, Place, Result};

use super::{DataPart, Finding, Severity, marks::Marks};
use crate::{
    format::{INODE_SLOT_SIZE, SUPER_OFFSET},
    read::{
        directory::{self, Directory},
        inode::Inode,
        volume::{Space, Volume},
        xattr_prefixes::LongPrefix,
    },
};

/// How deep a path may be; what is deeper is a fault of the check.
const DEPTH_MAX: usize = 65_536;

/// What a walk found out.
#[derive(Default)]
pub struct Walked {
    seen: HashMap<Nid, Seen>,
    parts: Vec<DataPart>,
}

/// What is remembered of an inode.
struct Seen {
    /// The directory that names it first; `None` for the root and what has no name.
    parent: Option<Nid>,
    is_directory: bool,
    /// How many links it says it has.
    link_count: u32,
    /// How many were found.
    links_found: u32,
}

impl Walked {
    /// The parts of files whose data is to be checked, in the order in which the files were found.
    pub fn parts(&self) -> &[DataPart] {
        &self.parts
    }

    /// How many inodes were found.
    pub fn inode_count(&self) -> usize {
        self.seen.len()
    }

    /// The path of an inode, by way of the directories that name it first.
    pub(super) fn path(&self, volume: &Volume, nid: Nid) -> Option<Vec<u8>> {
        let (mut names, mut child) = (Vec::new(), nid);
        while let Some(parent) = self.seen.get(&child)?.parent {
            if names.len() >= DEPTH_MAX {
                return None;
            }
            names.push(name_of(volume, parent, child)?);
            child = parent;
        }
        if names.is_empty() {
            return (child == volume.superblock.root).then(|| b"/".to_vec());
        }
        Some(names.iter().rev().flat_map(|name| [b"/".as_slice(), name].concat()).collect())
    }
}

/// The name of `child` in `parent`.
fn name_of(volume: &Volume, parent: Nid, child: Nid) -> Option<Vec<u8>> {
    let inode = Inode::read(volume, parent).ok()?;
    let mut directory = Directory::new(volume, &inode).ok()?;
    for number in 0..volume.superblock.block_size.blocks(inode.size) {
        let block = directory.block(number).ok()?;
        for index in 0..block.entry_count() {
            let Ok(entry) = block.entry(index) else { break };
            if entry.nid == child && !matches!(entry.name, b"." | b"..") {
                return Some(entry.name.to_vec());
            }
        }
    }
    None
}

/// Walks the tree.
pub(super) fn walk(volume: &Volume, prefixes: &[LongPrefix], report: &mut dyn FnMut(Finding)) -> Walked {
    let mut walker = Walker {
        volume,
        prefixes,
        report,
        walked: Walked::default(),
        marks: Marks::new(volume.superblock.block_size.bytes()),
        bodies: Vec::new(),
        pending: Vec::new(),
        data_end: 0,
    };
    let superblock = &volume.superblock;
    walker.marks.metadata(DeviceId(0), ByteRange::between(SUPER_OFFSET, superblock.end));
    for special in [&volume.metabox, &volume.packed].into_iter().filter_map(|special| special.get()) {
        walker.add(&special.inode, None);
    }
    walker.visit(superblock.root, None, None);
    while let Some(nid) = walker.pending.pop() {
        walker.directory(nid);
    }
    walker.finish();
    walker.walked
}

pub(super) struct Walker<'walk> {
    pub(super) volume: &'walk Volume,
    pub(super) prefixes: &'walk [LongPrefix],
    report: &'walk mut dyn FnMut(Finding),
    walked: Walked,
    pub(super) marks: Marks,
    /// What each inode takes of the metadata.
    pub(super) bodies: Vec<(Space, ByteRange, Nid)>,
    /// Directories that are to be read.
    pending: Vec<Nid>,
    /// The end of the last data of the image itself.
    pub(super) data_end: u64,
}

impl Walker<'_> {
    /// Tells what is wrong with inode `nid`.
    pub(super) fn tell(&mut self, severity: Severity, rule: impl Into<Cow<'static, str>>, place: Place) {
        let path = place.nid.and_then(|nid| self.walked.path(self.volume, nid));
        (self.report)(Finding { severity, rule: rule.into(), place, path });
    }

    /// Tells that a read for inode `nid` ended in an error.
    pub(super) fn tell_error(&mut self, nid: Nid, error: Error) {
        let path = self.walked.path(self.volume, nid);
        (self.report)(Finding::of(error.for_inode(nid), path));
    }

    /// Leaves a part of a file for the check of data.
    pub(super) fn leave(&mut self, part: DataPart) {
        self.walked.parts.push(part);
    }

    /// Looks at an inode that `parent` names `name`, and gives its type.
    fn visit(&mut self, nid: Nid, parent: Option<Nid>, name: Option<&[u8]>) -> Option<FileType> {
        if let Some(seen) = self.walked.seen.get_mut(&nid) {
            if seen.is_directory {
                self.tell(Severity::Error, "directory under two names", Place::inode(nid));
                return Some(FileType::Directory);
            }
            seen.links_found = seen.links_found.saturating_add(1);
            return Inode::read(self.volume, nid).ok().map(|inode| inode.file_type);
        }
        match Inode::read(self.volume, nid) {
            Ok(inode) => {
                self.add(&inode, parent);
                Some(inode.file_type)
            }
            Err(error) => {
                let path = parent.and_then(|parent| self.walked.path(self.volume, parent)).zip(name);
                let path = path.map(|(path, name)| match path.as_slice() {
                    b"/" => [b"/", name].concat(),
                    path => [path, b"/", name].concat(),
                });
                (self.report)(Finding::of(error.for_inode(nid), path));
                None
            }
        }
    }

    /// Looks at an inode for the first time.
    fn add(&mut self, inode: &Inode, parent: Option<Nid>) {
        let is_directory = inode.file_type == FileType::Directory;
        let (link_count, links_found) = (inode.link_count, if is_directory { 2 } else { 1 });
        self.walked.seen.insert(inode.nid, Seen { parent, is_directory, link_count, links_found });
        self.inode(inode);
        if is_directory {
            self.pending.push(inode.nid);
        }
    }

    /// Looks at the entries of a directory.
    fn directory(&mut self, nid: Nid) {
        if let Err(error) = self.entries(nid) {
            self.tell_error(nid, error);
        }
    }

    fn entries(&mut self, nid: Nid) -> Result<()> {
        let volume = self.volume;
        let inode = Inode::read(volume, nid)?;
        let mut directory = Directory::new(volume, &inode)?;
        let mut previous = Vec::new();
        let (mut has_self, mut has_parent) = (inode.omits_dot, false);
        for number in 0..volume.superblock.block_size.blocks(inode.size) {
            let block = directory.block(number)?;
            if !block.has_whole_entries() {
                self.tell(Severity::Warning, "first name of a directory block cuts an entry", Place::inode(nid));
            }
            for index in 0..block.entry_count() {
                let entry = block.entry(index)?;
                match previous.as_slice().cmp(entry.name) {
                    Ordering::Less => {}
                    Ordering::Equal => self.tell(Severity::Error, "two dirents of one name", Place::inode(nid)),
                    Ordering::Greater => self.tell(Severity::Error, "dirents are not sorted", Place::inode(nid)),
                }
                previous = entry.name.to_vec();
                let parent = self.walked.seen.get(&nid).and_then(|seen| seen.parent).unwrap_or(nid);
                let expected = match entry.name {
                    b"." => (nid, &mut has_self),
                    b".." => (parent, &mut has_parent),
                    name => {
                        let found = self.visit(entry.nid, Some(nid), Some(name));
                        self.entry_type(nid, entry.file_type, found);
                        continue;
                    }
                };
                *expected.1 = true;
                if entry.nid != expected.0 {
                    let rule = if entry.name == b"." { "`.` is another inode" } else { "`..` is not the parent" };
                    self.tell(Severity::Error, rule, Place::inode(nid));
                }
            }
        }
        for (is_there, rule) in [(has_self, "directory without `.`"), (has_parent, "directory without `..`")] {
            if !is_there {
                self.tell(Severity::Error, rule, Place::inode(nid));
            }
        }
        Ok(())
    }

    /// Compares the type of an entry of directory `nid` with that of the inode it names.
    fn entry_type(&mut self, nid: Nid, stored: u8, found: Option<FileType>) {
        if found == Some(FileType::Directory)
            && let Some(seen) = self.walked.seen.get_mut(&nid)
        {
            seen.links_found = seen.links_found.saturating_add(1);
        }
        match directory::file_type(stored) {
            None => self.tell(Severity::Warning, "dirent of no known type", Place::inode(nid)),
            Some(_) if found.is_none() => {}
            file_type if file_type != found => {
                self.tell(Severity::Error, "dirent of another type than its inode", Place::inode(nid));
            }
            Some(_) => {}
        }
    }

    /// What can only be said at the end.
    fn finish(&mut self) {
        let superblock = &self.volume.superblock;
        let wrong = self.walked.seen.iter().filter(|(_, seen)| seen.link_count != seen.links_found);
        let mut wrong: Vec<(Nid, u32)> = wrong.map(|(nid, seen)| (*nid, seen.links_found)).collect();
        wrong.sort_unstable();
        for (nid, found) in wrong {
            if self.volume.special(nid).is_none() {
                self.tell(Severity::Warning, format!("wrong link count: {found} were found"), Place::inode(nid));
            }
        }
        let found = u64::try_from(self.walked.seen.len()).unwrap_or(u64::MAX);
        // Incremental images also count inodes that no directory names any more.
        let room = self.volume.space_len(Space::Image).saturating_add(self.volume.space_len(Space::Metabox));
        if !(found..=room / INODE_SLOT_SIZE).contains(&superblock.inode_count) {
            let rule = format!("wrong inode count: {}, but {found} were found", superblock.inode_count);
            self.tell(Severity::Warning, rule, Place::at(SUPER_OFFSET));
        }
        if superblock.block_size.blocks(self.data_end) > superblock.block_count {
            self.tell(Severity::Warning, "data past the block count", Place::at(SUPER_OFFSET));
        }
        if self.marks.is_full() {
            self.tell(Severity::Warning, "too many blocks to look for all overlaps", Place::UNKNOWN);
        }
        let mut bodies = std::mem::take(&mut self.bodies);
        bodies.sort_unstable_by_key(|(space, range, nid)| (*space == Space::Metabox, range.offset(), *nid));
        for pair in bodies.windows(2) {
            let [(space, range, _), (next_space, next_range, next)] = pair else { continue };
            if space == next_space && next_range.offset() < range.end() {
                self.tell(Severity::Error, "inode overlaps another one", Place::inode(*next));
            }
        }
    }
}
