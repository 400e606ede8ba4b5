//! Implements [`FileSystem`] for SquashFS.

use std::{cmp::Ordering, collections::HashSet, num::NonZero, ops::ControlFlow, sync::Arc};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DeviceNumber, DirectoryCursor, Dirent, Error, Extent, FileSystem,
    FileSystemInfo, FileType, Nid, Outline, Place, Result, SeekTarget, Timestamp, Xattr,
};

use super::{DirectoryInode, Inode, InodeData, Name, RegularInode, Squashfs, xattr::XattrBytes};
use crate::format::{self, METADATA_BYTES, XattrId};

/// The length of the shortest dirent in bytes: its name has one byte.
const ENTRY_BYTES_MIN: u64 = 9;

/// The fewest bytes that a metadata block takes in the image.
const METADATA_BLOCK_BYTES_MIN: u64 = 3;

/// The maximum number of blocks that the search for a hole in a file examines.
const LISTED_BLOCKS_MAX: u64 = 1 << 16;

/// Identifies no inode; used as `..` of a directory whose parent cannot be found.
const NO_NID: Nid = Nid(u64::MAX);

/// The cursor after `.`; the values are those of the kernel's `telldir`.
const AFTER_DOT: u64 = 1;

/// The cursor after `..`. The cursor after a dirent adds the bytes of the listing up to its end.
const AFTER_DOT_DOT: u64 = 3;

impl FileSystem for Squashfs {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        Arc::new(Self { metadata: self.metadata.with_reader(reader), ..(*self).clone() })
    }

    fn root(&self) -> Nid {
        self.superblock.root
    }

    fn info(&self) -> FileSystemInfo {
        let superblock = &self.superblock;
        let block_size = superblock.block_size();
        let compression = superblock.compression.name().to_owned();
        FileSystemInfo {
            format: "squashfs",
            magic: format::MAGIC,
            block_size,
            block_count: superblock.bytes_used.div_ceil(u64::from(block_size)),
            inode_count: u64::from(superblock.inode_count),
            name_bytes_max: format::NAME_BYTES_MAX,
            built: Timestamp { seconds: i64::from(superblock.built_seconds), nanoseconds: 0 },
            uuid: None,
            label: Vec::new(),
            features: [compression].into_iter().chain(superblock.flags.words().map(str::to_owned)).collect(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { has_acls: false, has_label: false, limits_inodes: true }
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        self.attr_of(&self.inode(nid)?)
    }

    fn find_number(&self, inode_number: u64) -> Result<Option<Nid>> {
        u32::try_from(inode_number).map_or(Ok(None), |number| self.numbered(number))
    }

    fn inode_number_max(&self) -> u64 {
        u64::from(self.superblock.inode_count)
    }

    fn misnumbered_nid_max(&self) -> Option<Nid> {
        // A reference has 32 bits for the block of the inode, and 16 for the offset in it.
        let block = self.inode_table.end.saturating_sub(self.inode_table.start).min(u32::MAX.into());
        Some(Nid(block.wrapping_shl(16) | u64::from(u16::MAX)))
    }

    fn outline(&self, nid: Nid) -> Result<Outline> {
        let inode = self.inode(nid)?;
        let has_holes = match &inode.data {
            InodeData::Regular(file) => self.may_have_holes(nid, file)?,
            _ => false,
        };
        Ok(Outline {
            attr: self.attr_of(&inode)?,
            may_have_xattrs: inode.xattr_index.is_some(),
            hole_alignment: NonZero::new(u64::from(self.superblock.block_size())).filter(|_| has_holes),
            directory_block: None,
        })
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        let inode = self.inode(directory)?;
        let data = inode.directory()?;
        match name {
            b"." => return Ok(Some(directory)),
            b".." => return self.parent(directory, data).map(Some),
            _ => {}
        }
        let mut listing = self.listing_from(directory, data, |_, first_name| first_name <= name)?;
        let mut found = Name::new();
        while let Some(listed) = listing.next(&mut found)? {
            match found.as_bytes().cmp(name) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Some(listed.nid)),
                Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let inode = self.inode(directory)?;
        let data = inode.directory()?;
        for dot in self.dots(&inode, data)? {
            if cursor < dot.next && visit(dot).is_break() {
                return Ok(());
            }
        }
        let wanted = cursor.0.saturating_sub(AFTER_DOT_DOT);
        let mut listing = self.listing_from(directory, data, |offset, _| u64::from(offset) <= wanted)?;
        let mut name = Name::new();
        while let Some(listed) = listing.next(&mut name)? {
            let end = u64::from(listing.offset());
            if end <= wanted {
                continue;
            }
            let dirent = Dirent {
                name: name.as_bytes(),
                nid: listed.nid,
                inode_number: u64::from(listed.number),
                file_type: listed.file_type,
                next: DirectoryCursor(end.saturating_add(AFTER_DOT_DOT)),
            };
            if visit(dirent).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn entry_count_max(&self) -> u64 {
        if let Some(count) = self.entry_count_max.get() {
            return *count;
        }
        let (bytes, is_lasting) = self.directory_table_bytes_max();
        let count = bytes.wrapping_div(ENTRY_BYTES_MIN);
        if is_lasting { *self.entry_count_max.get_or_init(|| count) } else { count }
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        let inode = self.inode(nid)?;
        let InodeData::Symlink { size, target } = inode.data else {
            return Err(Error::WrongType { expected: "a symbolic link", nid });
        };
        let bytes = self.metadata.cursor(self.inode_table, target).take(size);
        let bytes = bytes.map_err(|error| error.for_inode(nid))?;
        if bytes.contains(&0) {
            return Err(Error::corrupt("symbolic link target contains NUL", Place::inode_at(nid, target.block)));
        }
        Ok(bytes)
    }

    fn has_xattrs(&self) -> bool {
        self.xattrs.is_some()
    }

    fn xattr(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let named = |error: Error| error.for_inode(nid);
        let Some(set) = self.xattr_set(&self.inode(nid)?)? else { return Ok(None) };
        let mut attributes = self.xattr_list(&set).map_err(named)?;
        let mut bytes = XattrBytes::at(Place::inode(nid));
        while let Some(attribute) = attributes.next().map_err(named)? {
            bytes.add_value(attribute.stored_len())?;
            bytes.add_name(&attribute)?;
            if attribute.is_named(name) {
                return attribute.value().map(Some).map_err(named);
            }
        }
        Ok(None)
    }

    fn xattr_names(&self, nid: Nid) -> Result<Vec<Vec<u8>>> {
        let named = |error: Error| error.for_inode(nid);
        let Some(set) = self.xattr_set(&self.inode(nid)?)? else { return Ok(Vec::new()) };
        let mut attributes = self.xattr_list(&set).map_err(named)?;
        let (mut names, mut bytes) = (Vec::new(), XattrBytes::at(Place::inode(nid)));
        while let Some(attribute) = attributes.next().map_err(named)? {
            bytes.add_value(attribute.stored_len())?;
            names.extend(bytes.add_name(&attribute)?);
        }
        Ok(names)
    }

    fn xattrs(&self, nid: Nid, visit: &mut dyn FnMut(Xattr<'_>) -> ControlFlow<()>) -> Result<()> {
        let named = |error: Error| error.for_inode(nid);
        let Some(set) = self.xattr_set(&self.inode(nid)?)? else { return Ok(()) };
        let mut attributes = self.xattr_list(&set).map_err(named)?;
        let (mut seen, mut bytes) = (HashSet::new(), XattrBytes::at(Place::inode(nid)));
        while let Some(attribute) = attributes.next().map_err(named)? {
            // The first of two attributes with the same name counts.
            let Some(name) = bytes.add_name(&attribute)?.filter(|name| !seen.contains(name)) else {
                bytes.add_value(attribute.stored_len())?;
                continue;
            };
            let value = attribute.value().map_err(named)?;
            bytes.add_value(value.len())?;
            if visit(Xattr { name: &name, value: &value }).is_break() {
                break;
            }
            seen.insert(name);
        }
        Ok(())
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        self.map_file(nid, self.inode(nid)?.regular()?, range, extents)
    }

    fn seek(&self, nid: Nid, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        self.seek_file(nid, self.inode(nid)?.regular()?, offset, target)
    }
}

impl Squashfs {
    /// The attributes of an inode, as `stat` reports them (section "What stat shows").
    fn attr_of(&self, inode: &Inode) -> Result<Attr> {
        let xattrs = self.xattr_set(inode)?;
        let (size, device) = match &inode.data {
            InodeData::Directory(directory) => (u64::from(directory.size), DeviceNumber::default()),
            InodeData::Regular(file) => (file.size, DeviceNumber::default()),
            InodeData::Symlink { size, .. } => (u64::from(*size), DeviceNumber::default()),
            InodeData::BlockDevice(device) | InodeData::CharacterDevice(device) => (0, *device),
            InodeData::Fifo | InodeData::Socket => (0, DeviceNumber::default()),
        };
        Ok(Attr {
            nid: inode.nid,
            inode_number: u64::from(inode.number),
            file_type: inode.file_type(),
            permissions: inode.permissions,
            uid: self.id(inode, inode.uid_index)?,
            gid: self.id(inode, inode.gid_index)?,
            size,
            link_count: inode.link_count,
            modified: Timestamp { seconds: i64::from(inode.modified_seconds), nanoseconds: 0 },
            device,
            blocks_512: blocks_512(inode, xattrs.as_ref()),
        })
    }

    /// Whether a file may have holes. Only the block list shows them; a list of more than [`LISTED_BLOCKS_MAX`] blocks
    /// is not read, and the answer is then yes.
    fn may_have_holes(&self, nid: Nid, file: &RegularInode) -> Result<bool> {
        match file.block_count {
            0 => Ok(false),
            1..=LISTED_BLOCKS_MAX => match self.seek_file(nid, file, 0, SeekTarget::Hole) {
                Err(error) if error.is_transient() => Err(error),
                hole => Ok(hole.is_ok_and(|hole| hole.is_some_and(|hole| hole < file.size))),
            },
            _ => Ok(true),
        }
    }

    /// The decoded length of the directory table in bytes; from the first unreadable block on, an upper bound.
    /// Returns whether a later call would return the same.
    fn directory_table_bytes_max(&self) -> (u64, bool) {
        let (mut position, mut bytes) = (self.directory_table.start, 0_u64);
        // Each block ends after its start, so the loop ends.
        while position < self.directory_table.end {
            match self.metadata.block(position) {
                Ok((block, end)) => {
                    bytes = bytes.saturating_add(u64::try_from(block.len()).unwrap_or(u64::MAX));
                    position = end;
                }
                Err(error) => {
                    let block_count =
                        self.directory_table.end.saturating_sub(position).wrapping_div(METADATA_BLOCK_BYTES_MIN);
                    let rest = block_count.saturating_add(1).saturating_mul(METADATA_BYTES.into());
                    return (bytes.saturating_add(rest), !error.is_transient());
                }
            }
        }
        (bytes, true)
    }

    /// The user or group id for an inode's index.
    fn id(&self, inode: &Inode, index: u16) -> Result<u32> {
        let id = self.ids.get(usize::from(index)).copied();
        id.ok_or(Error::corrupt("id index past the id table", Place::inode(inode.nid)))
    }

    /// The entries `.` and `..`, which listings omit.
    fn dots(&self, inode: &Inode, directory: &DirectoryInode) -> Result<[Dirent<'static>; 2]> {
        let entry = |name, nid, number, next| Dirent {
            name,
            nid,
            inode_number: u64::from(number),
            file_type: FileType::Directory,
            next: DirectoryCursor(next),
        };
        // A directory can be listed although its parent is lost; only `..` itself then fails.
        let parent = match self.parent(inode.nid, directory) {
            Err(error) if error.is_transient() => return Err(error),
            parent => parent.unwrap_or(NO_NID),
        };
        Ok([entry(b".", inode.nid, inode.number, AFTER_DOT), entry(b"..", parent, directory.parent, AFTER_DOT_DOT)])
    }
}

/// `st_blocks` as the kernel counts it: data without holes, plus the attributes (section "What stat shows").
fn blocks_512(inode: &Inode, xattrs: Option<&XattrId>) -> u64 {
    let data = match &inode.data {
        InodeData::Regular(file) => stored_bytes(file).div_ceil(512),
        _ => 0,
    };
    data.saturating_add(xattrs.map_or(0, |set| u64::from(set.size).div_ceil(512)))
}

fn stored_bytes(file: &RegularInode) -> u64 {
    // Wraps if the inode states more bytes in holes than it has, as in the kernel.
    file.size.wrapping_sub(file.sparse)
}
