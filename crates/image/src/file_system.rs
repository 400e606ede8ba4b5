//! The interface of a format: inodes, directory entries, extended attributes, and extents, which map file bytes to image bytes.

use std::{ops::ControlFlow, sync::Arc};

use crate::{Attr, BlockReader, ByteRange, DeviceId, FileType, Nid, Outline, Result, StoredBlock, Timestamp};

/// Properties of a whole image, for `statfs` and the tools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystemInfo {
    /// The name of the format: "erofs" or "squashfs".
    pub format: &'static str,
    /// The magic number of the file system, as in `statfs`.
    pub magic: u32,
    /// The block size in bytes.
    pub block_size: u32,
    /// The size of the image in blocks, as the kernel's mount reports it.
    pub block_count: u64,
    /// The number of inodes.
    pub inode_count: u64,
    /// The length of the longest name that the format permits, in bytes.
    pub name_bytes_max: usize,
    /// The time when the image was built.
    pub built: Timestamp,
    /// The UUID of the image, if it has one.
    pub uuid: Option<[u8; 16]>,
    /// The volume label; often empty.
    pub label: Vec<u8>,
    /// The features that the image uses, in the terms of its format.
    pub features: Vec<String>,
}

/// What the kernel's mounts of a format offer, and therefore all mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether access control lists apply, and can be read as `system.` attributes.
    pub has_acls: bool,
    /// Whether an image has a label that can be asked for, even if it is empty.
    pub has_label: bool,
    /// Whether `statfs` reports a limit of inodes: as many as there are.
    pub limits_inodes: bool,
}

/// The target of a search with `lseek`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    /// Data: bytes outside holes.
    Data,
    /// A hole; the end of the file counts as one.
    Hole,
}

/// A file system in an image. It reads metadata through a [`BlockReader`], starts no threads and never reads file data:
/// it only returns where the data is.
///
/// Callers may pass any number as a [`Nid`]; a number that identifies no inode leads to an error. Violations of the
/// format lead to [`Error::Corrupt`](crate::Error::Corrupt), never to a panic.
pub trait FileSystem: Send + Sync {
    /// Returns the same file system over another reader of the same image. Both share what the format has cached.
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem>;

    /// The root directory.
    fn root(&self) -> Nid;

    /// The properties of the image.
    fn info(&self) -> FileSystemInfo;

    /// What mounts of this format offer.
    fn capabilities(&self) -> Capabilities;

    /// The attributes of an inode.
    ///
    /// # Errors
    /// The inode cannot be read or breaks the format.
    fn attr(&self, nid: Nid) -> Result<Attr>;

    /// Computes the inode with this [`Attr::inode_number`] from the number alone, without reading the image. `None` if
    /// the format does not support this. A format supports this for all of its inode numbers or for none. The inode
    /// need not exist.
    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        let _ = inode_number;
        None
    }

    /// Finds the inode with this [`Attr::inode_number`]. `None` if there is none, or if the format cannot find it. The
    /// call may read the image; a format without an inode table reads all inodes, once.
    ///
    /// # Errors
    /// The metadata that maps numbers to inodes cannot be read or breaks the format.
    fn find_number(&self, inode_number: u64) -> Result<Option<Nid>> {
        Ok(self.nid_of(inode_number))
    }

    /// The largest [`Attr::inode_number`] that an inode of this image can have.
    fn inode_number_max(&self) -> u64 {
        u64::MAX
    }

    /// The largest nid of an inode of this image, if an image of this format can number its inodes wrongly. An inode whose number
    /// leads to another inode, or to none, is then identified by its nid. `None` if the nid follows from the number.
    fn misnumbered_nid_max(&self) -> Option<Nid> {
        None
    }

    /// Returns which of the 64 inode numbers from `first` on may belong to an inode, as a bit set; the lowest bit
    /// stands for `first`. A clear bit means that no inode has this number; a set bit guarantees nothing. A scan of
    /// many numbers can skip the numbers whose bits are clear.
    ///
    /// # Errors
    /// Reading the metadata failed for a transient reason ([`Error::is_transient`](crate::Error::is_transient)).
    fn possible_numbers(&self, first: u64) -> Result<u64> {
        let _ = first;
        Ok(u64::MAX)
    }

    /// Returns properties of an inode that cost little more than [`FileSystem::attr`]: the call reads no data, no
    /// directories and no long block lists.
    ///
    /// # Errors
    /// As for [`FileSystem::attr`].
    fn outline(&self, nid: Nid) -> Result<Outline> {
        Ok(Outline { attr: self.attr(nid)?, may_have_xattrs: true, hole_alignment: None, directory_block: None })
    }

    /// Looks up `name` in `directory`, including `.` and `..`. `None` if there is no such entry.
    ///
    /// # Errors
    /// `directory` is not a directory, cannot be read or breaks the format.
    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>>;

    /// Visits the entries of `directory` from `cursor` on, in the order of the format, including `.` and `..`, until
    /// the visitor breaks.
    ///
    /// # Errors
    /// `directory` is not a directory, cannot be read or breaks the format. The entries before the fault have been
    /// visited.
    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// An upper bound of the number of directory entries in the image, valid if each entry belongs to one directory
    /// only, as the format requires. If a tree walk finds more, directories share their content. Even a small image can
    /// then have more entries than a walk could ever visit.
    fn entry_count_max(&self) -> u64 {
        u64::MAX
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The inode is not a symbolic link, cannot be read or breaks the format.
    fn read_link(&self, nid: Nid) -> Result<Vec<u8>>;

    /// Whether any inode may have extended attributes; false only if the image says that none has.
    fn has_xattrs(&self) -> bool {
        true
    }

    /// The value of an extended attribute by its full name (`user.comment`), or `None`.
    ///
    /// # Errors
    /// The attributes cannot be read or break the format.
    fn xattr(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The full names of all extended attributes, in the order of the format.
    ///
    /// # Errors
    /// The attributes cannot be read or break the format, or there are more names than Linux lists: 64 KiB.
    fn xattr_names(&self, nid: Nid) -> Result<Vec<Vec<u8>>>;

    /// Visits all extended attributes with full name and value, in the order of the format, until the visitor breaks.
    /// One call reads the attributes once, whereas each [`FileSystem::xattr`] may read all of them.
    ///
    /// # Errors
    /// As for [`FileSystem::xattr_names`]. The attributes before the fault have been visited.
    fn xattrs(&self, nid: Nid, visit: &mut dyn FnMut(Xattr<'_>) -> ControlFlow<()>) -> Result<()> {
        for name in self.xattr_names(nid)? {
            if let Some(value) = self.xattr(nid, &name)?
                && visit(Xattr { name: &name, value: &value }).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Appends the extents of `range` to `extents`: in order, without gaps or overlaps, covering the part of `range`
    /// that lies within the file. The first and the last extent may reach beyond `range`, never beyond the file size.
    /// Several extents may share a block.
    ///
    /// # Errors
    /// The inode is not a regular file, directory or symbolic link; cannot be read; or breaks the format.
    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()>;

    /// The offset of the first byte at or after `offset` of the requested kind, as `lseek` on the kernel's mount
    /// returns it; `None` if there is none (`ENXIO`).
    ///
    /// # Errors
    /// As for [`FileSystem::map`].
    fn seek(&self, nid: Nid, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        seek_in_extents(self, nid, offset, target)
    }
}

/// The number of file bytes that a search maps in each step. Bounds the memory of a search in a large file.
const SEEK_STEP_BYTES: u64 = 16 << 20;

fn seek_in_extents<F: FileSystem + ?Sized>(
    file_system: &F,
    nid: Nid,
    offset: u64,
    target: SeekTarget,
) -> Result<Option<u64>> {
    let size = file_system.attr(nid)?.size;
    let mut position = offset;
    let mut extents = Vec::new();
    while position < size {
        let step = ByteRange::between(position, size.min(position.saturating_add(SEEK_STEP_BYTES)));
        extents.clear();
        file_system.map(nid, step, &mut extents)?;
        for extent in &extents {
            let is_hole = extent.data == ExtentData::Hole;
            if extent.range.end() > position && is_hole == (target == SeekTarget::Hole) {
                return Ok(Some(extent.range.offset().max(position)));
            }
        }
        position = extents.last().map_or(step.end(), |last| last.range.end()).max(step.end());
    }
    Ok((target == SeekTarget::Hole && offset < size).then_some(size))
}

/// The maximum nesting of directories: deeper ones are neither walked nor extracted. A path for `open` has at most 2,048
/// names.
pub const DIRECTORY_DEPTH_MAX: usize = 4096;

/// The violated rule of a directory that is nested deeper than [`DIRECTORY_DEPTH_MAX`].
pub const DIRECTORY_TOO_DEEP: &str = "directories more than 4096 deep";

/// A position between two entries of a directory; 0 is the beginning. Only the format interprets other values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DirectoryCursor(pub u64);

/// One entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirent<'name> {
    /// The name: any bytes except `/` and NUL; never empty.
    pub name: &'name [u8],
    /// The inode that the entry refers to.
    pub nid: Nid,
    /// The inode number that `readdir` reports (`d_ino`).
    pub inode_number: u64,
    /// The file type recorded in the entry.
    pub file_type: FileType,
    /// The cursor that continues after this entry.
    pub next: DirectoryCursor,
}

/// A run of file bytes with its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The range within the file.
    pub range: ByteRange,
    /// The origin of the bytes.
    pub data: ExtentData,
}

/// The origin of the bytes of an [`Extent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentData {
    /// A hole: the bytes are zero.
    Hole,
    /// The image stores the bytes uncompressed.
    Plain {
        /// The source that contains them.
        device: DeviceId,
        /// The offset of the first byte in that source.
        offset: u64,
    },
    /// The bytes are part of a block that has to be decoded.
    Encoded {
        /// The block.
        block: StoredBlock,
        /// How many decoded bytes precede the extent. If the block ends before the extent does, the image is corrupt.
        skip: u32,
    },
}

/// An extended attribute, borrowed by a visitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xattr<'a> {
    /// The full name: `user.comment`.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}
