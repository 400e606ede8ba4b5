//! The walk of the tree.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{
    ByteRange, ByteRangeSet, DIRECTORY_DEPTH_MAX, DIRECTORY_TOO_DEEP, DeviceId, Error, FileType, Nid, Place, Result,
};

use super::{
    DataPart, Finding, Severity,
    encoded_blocks::EncodedBlocks,
    uses::{Contents, Marks},
};
use crate::{
    format::{INODE_SLOT_SIZE, SUPER_OFFSET},
    read::{
        directory::{self, Directory},
        inode::Inode,
        parameters::Space,
        volume::Volume,
        xattr::SharedXattrFaults,
        xattr_prefixes::LongPrefix,
    },
};

/// The longest path in a finding. Longer paths cannot be opened, and make many findings slow to report.
const PATH_BYTES_MAX: usize = 4096;

/// How many directory entries the check reads again to build the paths of findings. Findings after that have no path.
const PATH_NAMES_MAX: u64 = 1 << 18;

/// Upper bound of the ratio of decoded metadata to the length of the image. Only zeros compress so well; inodes and
/// their maps stay far below it.
const METADATA_RATIO_MAX: u64 = 256;

/// The shortest map record in bytes: an entry of a compact index.
const RECORD_BYTES_MIN: u64 = 2;

/// The result of a walk.
pub struct Walked {
    seen: HashMap<Nid, Seen>,
    pub(super) parts: Vec<DataPart>,
    pub(super) blocks: EncodedBlocks,
    /// How many more entries the check may read for paths.
    path_names_left: AtomicU64,
}

/// An inode that the walk has found.
struct Seen {
    /// The first entry that refers to it; `None` for the root and inodes without a name.
    entry: Option<EntryPlace>,
    is_directory: bool,
    /// Its stated link count.
    link_count: u32,
    /// The number of links found.
    links_found: u32,
}

/// The location of a directory entry.
#[derive(Clone, Copy)]
struct EntryPlace {
    directory: Nid,
    block: u64,
    index: usize,
}

impl Walked {
    fn new() -> Self {
        Self {
            seen: HashMap::new(),
            parts: Vec::new(),
            blocks: EncodedBlocks::default(),
            path_names_left: AtomicU64::new(PATH_NAMES_MAX),
        }
    }

    /// The parts of files whose data has to be verified, in the order in which the walk found the files.
    pub fn parts(&self) -> &[DataPart] {
        &self.parts
    }

    /// The inodes found, in any order.
    pub fn inodes(&self) -> impl Iterator<Item = Nid> {
        self.seen.keys().copied()
    }

    /// The number of inodes found.
    pub fn inode_count(&self) -> usize {
        self.seen.len()
    }

    /// The path of an inode through the directories that refer to it first; `None` if it is not reported.
    pub(super) fn path(&self, volume: &Volume, nid: Nid) -> Option<Vec<u8>> {
        let (mut names, mut len, mut child) = (Vec::new(), 0, nid);
        while let Some(entry) = self.seen.get(&child)?.entry {
            self.path_names_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
            let name = name_of(volume, entry)?;
            len += name.len() + 1;
            if len > PATH_BYTES_MAX {
                return None;
            }
            names.push(name);
            child = entry.directory;
        }
        if names.is_empty() {
            return (child == volume.superblock.root).then(|| b"/".to_vec());
        }
        Some(names.iter().rev().flat_map(|name| [b"/".as_slice(), name].concat()).collect())
    }
}

/// The name of an entry.
fn name_of(volume: &Volume, place: EntryPlace) -> Option<Vec<u8>> {
    let inode = Inode::read(volume, place.directory).ok()?;
    let block = Directory::new(volume, &inode).ok()?.block(place.block).ok()?;
    Some(block.entry(place.index).ok()?.name.to_vec())
}

/// Walks the tree.
pub(super) fn walk(
    volume: &Volume,
    prefixes: &[LongPrefix],
    report: &mut dyn FnMut(Finding),
    is_cancelled: &dyn Fn() -> bool,
) -> Walked {
    let metabox_len = volume.space_len(Space::Metabox).min(volume.image_len.saturating_mul(METADATA_RATIO_MAX));
    let mut walker = Walker {
        volume,
        prefixes,
        report,
        is_cancelled,
        walked: Walked::new(),
        marks: Marks::new(volume.superblock.block_size.bytes()),
        bodies: [ByteRangeSet::default(), ByteRangeSet::default()],
        contents: Contents::default(),
        shared_xattrs: SharedXattrFaults::default(),
        read: HashMap::new(),
        records_left: volume.image_len.saturating_add(metabox_len) / RECORD_BYTES_MIN,
        pending: Vec::new(),
        depth: 0,
        data_end: 0,
    };
    let superblock = &volume.superblock;
    walker.marks.metadata(DeviceId(0), ByteRange::between(SUPER_OFFSET, superblock.end));
    for special in [&volume.metabox, &volume.packed].into_iter().filter_map(|special| special.get()) {
        walker.add(&special.inode, None);
    }
    walker.visit(superblock.root, None, None);
    while let Some((nid, depth)) = walker.pending.pop().filter(|_| !is_cancelled()) {
        walker.depth = depth + 1;
        walker.directory(nid);
    }
    walker.finish();
    walker.walked
}

pub(super) struct Walker<'walk> {
    pub(super) volume: &'walk Volume,
    pub(super) prefixes: &'walk [LongPrefix],
    report: &'walk mut dyn FnMut(Finding),
    is_cancelled: &'walk dyn Fn() -> bool,
    pub(super) walked: Walked,
    pub(super) marks: Marks,
    /// The metadata bytes that inodes occupy, in the image and in the metabox.
    pub(super) bodies: [ByteRangeSet; 2],
    /// The bytes that directories occupy.
    pub(super) contents: Contents,
    pub(super) shared_xattrs: SharedXattrFaults,
    /// The stored bytes that are already in [`Walked::parts`].
    pub(super) read: HashMap<DeviceId, ByteRangeSet>,
    /// How many more map records the image has room for.
    records_left: u64,
    /// Directories that are not read yet, with the number of directories above each.
    pending: Vec<(Nid, usize)>,
    /// The number of directories above the entries that the walk visits.
    depth: usize,
    /// The end of the last data of the image itself, without that of extra devices behind it.
    pub(super) data_end: u64,
}

impl Walker<'_> {
    /// Reports a finding, with the path of the inode that `place` names.
    pub(super) fn add_finding(&mut self, severity: Severity, rule: impl Into<Cow<'static, str>>, place: Place) {
        let path = place.nid.and_then(|nid| self.walked.path(self.volume, nid));
        (self.report)(Finding { severity, rule: rule.into(), place, path });
    }

    /// Reports that a read for inode `nid` failed.
    pub(super) fn add_error(&mut self, nid: Nid, error: Error) {
        let path = self.walked.path(self.volume, nid);
        (self.report)(Finding::from(&error.for_inode(nid)).with_path(path));
    }

    /// Whether the caller has cancelled the check.
    pub(super) fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Deducts map records of inode `nid` from the number that the image has room for. This bounds the time for maps by
    /// the size of the image, even if the maps of all inodes overlap.
    ///
    /// # Errors
    /// The image has no room for this many records.
    pub(super) fn take_records(&mut self, nid: Nid, count: u64) -> Result<()> {
        let left = self.records_left.checked_sub(count);
        let rule = "maps of inodes overlap: they have more records than the image has room for";
        self.records_left = left.ok_or(Error::corrupt(rule, Place::inode(nid)))?;
        Ok(())
    }

    /// Checks an inode that an entry refers to as `name`; returns its type.
    fn visit(&mut self, nid: Nid, entry: Option<EntryPlace>, name: Option<&[u8]>) -> Option<FileType> {
        if let Some(seen) = self.walked.seen.get_mut(&nid) {
            if seen.is_directory {
                self.add_finding(Severity::Error, "directory has two names", Place::inode(nid));
                return Some(FileType::Directory);
            }
            seen.links_found = seen.links_found.saturating_add(1);
            return Inode::read(self.volume, nid).ok().map(|inode| inode.file_type);
        }
        match Inode::read(self.volume, nid) {
            Ok(inode) => {
                self.add(&inode, entry);
                Some(inode.file_type)
            }
            Err(error) => {
                let path = entry.and_then(|entry| self.walked.path(self.volume, entry.directory)).zip(name);
                let path = path.map(|(path, name)| match path.as_slice() {
                    b"/" => [b"/", name].concat(),
                    path => [path, b"/", name].concat(),
                });
                (self.report)(Finding::from(&error.for_inode(nid)).with_path(path));
                None
            }
        }
    }

    /// Checks an inode that the walk finds for the first time.
    fn add(&mut self, inode: &Inode, entry: Option<EntryPlace>) {
        let is_directory = inode.file_type == FileType::Directory;
        let (link_count, links_found) = (inode.link_count, if is_directory { 2 } else { 1 });
        self.walked.seen.insert(inode.nid, Seen { entry, is_directory, link_count, links_found });
        if is_directory && self.depth == DIRECTORY_DEPTH_MAX {
            self.add_finding(Severity::Error, DIRECTORY_TOO_DEEP, Place::inode(inode.nid));
        }
        let is_sound = self.inode(inode);
        if is_directory && is_sound {
            self.pending.push((inode.nid, self.depth));
        }
    }

    /// Checks the entries of a directory.
    fn directory(&mut self, nid: Nid) {
        if let Err(error) = self.entries(nid) {
            self.add_error(nid, error);
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
                self.add_finding(
                    Severity::Warning,
                    "first name of a directory block begins inside an entry",
                    Place::inode(nid),
                );
            }
            for index in 0..block.entry_count() {
                if self.is_cancelled() {
                    return Ok(());
                }
                let entry = block.entry(index)?;
                match previous.as_slice().cmp(entry.name) {
                    Ordering::Less => {}
                    Ordering::Equal => self.add_finding(Severity::Error, "duplicate dirent name", Place::inode(nid)),
                    Ordering::Greater => self.add_finding(Severity::Error, "dirents are not sorted", Place::inode(nid)),
                }
                previous = entry.name.to_vec();
                let parent = self.walked.seen.get(&nid).and_then(|seen| seen.entry).map_or(nid, |own| own.directory);
                let expected = match entry.name {
                    b"." if inode.omits_dot => {
                        // `readdir` adds the omitted entry, so that the listing contains two.
                        let rule = "directory has `.` and says that it omits it";
                        self.add_finding(Severity::Error, rule, Place::inode(nid));
                        (nid, &mut has_self)
                    }
                    b"." => (nid, &mut has_self),
                    b".." => (parent, &mut has_parent),
                    name => {
                        let place = EntryPlace { directory: nid, block: number, index };
                        let found = self.visit(entry.nid, Some(place), Some(name));
                        self.entry_type(nid, entry.file_type, found);
                        continue;
                    }
                };
                *expected.1 = true;
                if entry.nid != expected.0 {
                    let rule =
                        if entry.name == b"." { "`.` refers to another inode" } else { "`..` is not the parent" };
                    self.add_finding(Severity::Error, rule, Place::inode(nid));
                }
            }
        }
        for (is_there, rule) in [(has_self, "directory without `.`"), (has_parent, "directory without `..`")] {
            if !is_there {
                self.add_finding(Severity::Error, rule, Place::inode(nid));
            }
        }
        Ok(())
    }

    /// Compares the file type of an entry of directory `nid` with the type of its inode.
    fn entry_type(&mut self, nid: Nid, stored: u8, found: Option<FileType>) {
        if found == Some(FileType::Directory)
            && let Some(seen) = self.walked.seen.get_mut(&nid)
        {
            seen.links_found = seen.links_found.saturating_add(1);
        }
        match directory::file_type(stored) {
            None => self.add_finding(Severity::Warning, "dirent of unknown type", Place::inode(nid)),
            Some(_) if found.is_none() => {}
            file_type if file_type != found => {
                self.add_finding(Severity::Error, "dirent type differs from that of its inode", Place::inode(nid));
            }
            Some(_) => {}
        }
    }

    /// Makes the checks that are possible only after the walk.
    fn finish(&mut self) {
        if self.is_cancelled() {
            return;
        }
        let superblock = &self.volume.superblock;
        let wrong = self.walked.seen.iter().filter(|(_, seen)| seen.link_count != seen.links_found);
        let mut wrong: Vec<(Nid, u32)> = wrong.map(|(nid, seen)| (*nid, seen.links_found)).collect();
        wrong.sort_unstable();
        for (nid, found) in wrong {
            if self.is_cancelled() {
                return;
            }
            if self.volume.special(nid).is_none() {
                self.add_finding(
                    Severity::Warning,
                    format!("wrong link count: {found} links found"),
                    Place::inode(nid),
                );
            }
        }
        let found = u64::try_from(self.walked.seen.len()).unwrap_or(u64::MAX);
        // Incremental images also count inodes that no directory refers to any more.
        let room = self.volume.space_len(Space::Image).saturating_add(self.volume.space_len(Space::Metabox));
        if !(found..=room / INODE_SLOT_SIZE).contains(&superblock.inode_count) {
            let rule = format!("wrong inode count: {} stated, {found} found", superblock.inode_count);
            self.add_finding(Severity::Warning, rule, Place::at(SUPER_OFFSET));
        }
        if superblock.block_size.blocks(self.data_end) > superblock.block_count {
            self.add_finding(Severity::Warning, "data past the block count", Place::at(SUPER_OFFSET));
        }
    }
}
