//! What a format is to the rest of Floe.

use std::{ops::ControlFlow, sync::Arc};

use crate::{
    Attr, BlockReader, ByteRange, DirectoryCursor, Dirent, Extent, ExtentData, Nid, Outline, Result, Timestamp, Xattr,
};

/// What `statfs` and the tools say of a whole image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystemInfo {
    /// The name of the format: "erofs" or "squashfs".
    pub format: &'static str,
    /// The file system's magic number, as `statfs` gives it.
    pub magic: u32,
    /// The block size in bytes.
    pub block_size: u32,
    /// The size of the image in blocks, as the kernel's mount says it.
    pub block_count: u64,
    /// The number of inodes.
    pub inode_count: u64,
    /// When the image was made.
    pub built: Timestamp,
    /// The UUID of the image, where it has one.
    pub uuid: Option<[u8; 16]>,
    /// The volume's name; often empty.
    pub label: Vec<u8>,
    /// The features that the image uses, in the words of its format.
    pub features: Vec<String>,
}

/// What a search with `lseek` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    /// Bytes that are stored.
    Data,
    /// Bytes that are not; the end of the file counts as such.
    Hole,
}

/// A file system in an image. It reads metadata through the [`BlockReader`] that it was opened
/// with, knows no threads and never touches file data: it says where they are.
///
/// Every call may be given any number for a [`Nid`]; one that names no inode ends in an error. Errors are
/// [`Error::Corrupt`](crate::Error::Corrupt) for what breaks the format, and never a panic.
pub trait FileSystem: Send + Sync {
    /// The same file system, reading its metadata through another reader of the same image. What the format has learnt of
    /// the image is shared.
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem>;

    /// The inode of `/`.
    fn root(&self) -> Nid;

    /// What the image says of itself.
    fn info(&self) -> FileSystemInfo;

    /// What `stat` says of an inode.
    ///
    /// # Errors
    /// The inode cannot be read or breaks the format.
    fn attr(&self, nid: Nid) -> Result<Attr>;

    /// The inode with this [`Attr::inode_number`], where the number alone tells it, without reading the image; `None`
    /// where it does not. A format answers either for every number that it gives out or for none; it need not know
    /// whether the inode exists.
    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        let _ = inode_number;
        None
    }

    /// The inode with this [`Attr::inode_number`], or `None` where there is none, or where the format cannot tell. It may
    /// read the image; a format without a table of its inodes reads all of them, once.
    ///
    /// # Errors
    /// What leads from numbers to inodes cannot be read or breaks the format.
    fn find_number(&self, inode_number: u64) -> Result<Option<Nid>> {
        Ok(self.nid_of(inode_number))
    }

    /// The largest [`Attr::inode_number`] that an inode of this image can have.
    fn inode_number_max(&self) -> u64 {
        u64::MAX
    }

    /// What can be said of an inode at little more cost than [`FileSystem::attr`]: no data is read, no directory, and no long
    /// list of blocks.
    ///
    /// # Errors
    /// As [`FileSystem::attr`].
    fn outline(&self, nid: Nid) -> Result<Outline> {
        Ok(Outline { attr: self.attr(nid)?, may_have_xattrs: true, hole_alignment: None, directory_block: None })
    }

    /// The inode that `directory` has under `name`, or `None`. `.` and `..` are found too.
    ///
    /// # Errors
    /// `directory` is not a directory, cannot be read or breaks the format.
    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>>;

    /// Visits the entries of `directory` from `cursor` on, in the order of the format, `.` and `..` among them, until
    /// the visitor breaks off.
    ///
    /// # Errors
    /// `directory` is not a directory, cannot be read or breaks the format. Entries before the fault were visited.
    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// How many directory entries the image has room for, if each stands in one directory alone, as it must. A walk of
    /// the whole tree that finds more goes through directories that share their content, of which a small image can have
    /// more than anybody can go through.
    fn entry_count_max(&self) -> u64 {
        u64::MAX
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The inode is not a symbolic link, cannot be read or breaks the format.
    fn read_link(&self, nid: Nid) -> Result<Vec<u8>>;

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

    /// Visits all extended attributes, each by its full name and its value, in the order of the format, until the
    /// visitor breaks off. This reads them once, where asking for each by its name reads them all each time.
    ///
    /// # Errors
    /// As [`FileSystem::xattr_names`]. Attributes before the fault were visited.
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

    /// Appends to `extents` where the bytes of `range` are: in order, without gaps or overlaps, covering what of
    /// `range` lies within the file's size. The first and the last extent may reach beyond `range` (never beyond the
    /// size); several extents may share a block.
    ///
    /// # Errors
    /// The inode is neither a regular file, a directory nor a symbolic link; cannot be read; or breaks the format.
    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()>;

    /// The first byte at or after `offset` that is of the wanted kind, as the kernel's mount answers `lseek`; `None`
    /// where there is none (`ENXIO`).
    ///
    /// # Errors
    /// As [`FileSystem::map`].
    fn seek(&self, nid: Nid, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        seek_in_extents(self, nid, offset, target)
    }
}

/// How many bytes of a file one step of a search maps, so that a search in a large file needs little memory.
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
