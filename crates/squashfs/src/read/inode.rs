//! Parsed inodes.

use floe_image::{DeviceNumber, Error, FileType, Nid, Place, Result};

use super::{
    Squashfs,
    metadata::{MetadataCursor, MetadataPosition},
};
use crate::format::{
    self, BaseInode, DevInode, DirIndex, DirInode, IpcInode, LDevInode, LDirInode, LIpcInode, LRegInode, RegInode,
    SymlinkInode,
};

/// The longest symbolic link target in bytes, as in the kernel.
const SYMLINK_BYTES_MAX: u32 = 4096;

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// An inode (section "Inodes").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) nid: Nid,
    /// The inode number, from 1 to the superblock's inode count.
    pub(crate) number: u32,
    /// Whether the inode has an extended type.
    pub(crate) is_extended: bool,
    /// The twelve permission bits.
    pub(crate) permissions: u16,
    /// The index of the owner in the id table.
    pub(crate) uid_index: u16,
    /// The index of the group in the id table.
    pub(crate) gid_index: u16,
    /// The modification time in seconds since 1970.
    pub(crate) modified_seconds: u32,
    pub(crate) link_count: u32,
    /// The attribute set.
    pub(crate) xattr_index: Option<u32>,
    pub(crate) data: InodeData,
}

/// The type-specific part of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InodeData {
    Directory(DirectoryInode),
    Regular(RegularInode),
    Symlink { size: u32, target: MetadataPosition },
    BlockDevice(DeviceNumber),
    CharacterDevice(DeviceNumber),
    Fifo,
    Socket,
}

/// The fields of a directory inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryInode {
    /// The size as in `st_size`: the listing's length plus 3.
    pub(crate) size: u32,
    /// The metadata block of the listing, relative to the directory table.
    pub(crate) start_block: u32,
    /// The offset of the listing in that block.
    pub(crate) offset: u16,
    /// The inode number of the parent; for the root, a number that does not exist.
    pub(crate) parent: u32,
    /// The number of index entries.
    pub(crate) index_count: u16,
    /// The position of the index.
    pub(crate) index: MetadataPosition,
}

/// The fields of a regular file inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegularInode {
    /// The size in bytes; at most [`FILE_BYTES_MAX`].
    pub(crate) size: u64,
    /// The number of bytes in holes that the inode states.
    pub(crate) sparse: u64,
    /// The position of the first data block.
    pub(crate) start: u64,
    pub(crate) fragment: Option<FragmentTail>,
    /// The number of data blocks, including holes.
    pub(crate) block_count: u64,
    /// The position of the block list.
    pub(crate) block_list: MetadataPosition,
}

/// The location of a file's tail end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentTail {
    /// The index of the fragment.
    pub(crate) index: u32,
    /// The offset of the tail end in the decoded fragment.
    pub(crate) offset: u32,
}

impl Squashfs {
    /// Reads the inode of a reference.
    pub(crate) fn inode(&self, nid: Nid) -> Result<Inode> {
        let position = MetadataPosition::of_reference(self.inode_table.start, nid.0)
            .ok_or(Error::corrupt("inode reference of more than 48 bits", Place::inode(nid)))?;
        let mut cursor = self.metadata.cursor(self.inode_table, position);
        self.read_inode(&mut cursor, nid).map_err(|error| error.for_inode(nid))
    }

    /// Reads the inode at a cursor. The cursor ends after the inode's fixed part.
    pub(crate) fn read_inode(&self, cursor: &mut MetadataCursor<'_>, nid: Nid) -> Result<Inode> {
        let place = cursor.position().place();
        let base: BaseInode = cursor.read()?;
        if base.inode_number == 0 || base.inode_number > self.superblock.inode_count {
            return Err(Error::corrupt("inode number is 0 or past the number of inodes", place));
        }
        let body = Body::read(base.inode_type, cursor, self.superblock.block_size_log2)?;
        Ok(Inode {
            nid,
            number: base.inode_number,
            is_extended: base.inode_type > format::SOCKET_TYPE,
            permissions: base.mode & 0o7777,
            uid_index: base.uid,
            gid_index: base.guid,
            modified_seconds: base.mtime,
            link_count: body.link_count,
            xattr_index: (body.xattr != format::ABSENT_XATTRS).then_some(body.xattr),
            data: body.data,
        })
    }
}

impl Inode {
    pub(crate) const fn file_type(&self) -> FileType {
        match self.data {
            InodeData::Directory(_) => FileType::Directory,
            InodeData::Regular(_) => FileType::Regular,
            InodeData::Symlink { .. } => FileType::Symlink,
            InodeData::BlockDevice(_) => FileType::BlockDevice,
            InodeData::CharacterDevice(_) => FileType::CharacterDevice,
            InodeData::Fifo => FileType::Fifo,
            InodeData::Socket => FileType::Socket,
        }
    }

    pub(crate) fn directory(&self) -> Result<&DirectoryInode> {
        match &self.data {
            InodeData::Directory(directory) => Ok(directory),
            _ => Err(Error::WrongType { expected: "a directory", nid: self.nid }),
        }
    }

    pub(crate) fn regular(&self) -> Result<&RegularInode> {
        match &self.data {
            InodeData::Regular(file) => Ok(file),
            _ => Err(Error::WrongType { expected: "a regular file", nid: self.nid }),
        }
    }

    /// Moves a cursor from the end of this inode's fixed part to the end of the inode.
    pub(crate) fn skip_rest(&self, cursor: &mut MetadataCursor<'_>) -> Result<()> {
        match &self.data {
            InodeData::Regular(file) => cursor.skip(file.block_count.saturating_mul(4)),
            InodeData::Symlink { .. } if self.is_extended => Ok(()),
            InodeData::Symlink { size, .. } => cursor.skip(u64::from(*size)),
            InodeData::Directory(directory) => {
                for _ in 0..directory.index_count {
                    let entry: DirIndex = cursor.read()?;
                    cursor.skip(u64::from(entry.size).saturating_add(1))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl RegularInode {
    /// The length of the tail end; 0 if there is none.
    pub(crate) fn tail_bytes(&self, block_size: u32) -> u64 {
        // The block size is a power of two.
        self.size & u64::from(block_size).wrapping_sub(1)
    }
}

/// The part that follows the common header.
struct Body {
    link_count: u32,
    xattr: u32,
    data: InodeData,
}

impl Body {
    fn read(inode_type: u16, cursor: &mut MetadataCursor<'_>, block_size_log2: u8) -> Result<Self> {
        let basic = |link_count, data| Ok(Self { link_count, xattr: format::ABSENT_XATTRS, data });
        match inode_type {
            format::DIR_TYPE | format::LDIR_TYPE => Self::read_directory(inode_type, cursor),
            format::REG_TYPE | format::LREG_TYPE => Self::read_regular(inode_type, cursor, block_size_log2),
            format::SYMLINK_TYPE | format::LSYMLINK_TYPE => Self::read_symlink(inode_type, cursor),
            format::BLKDEV_TYPE | format::CHRDEV_TYPE => {
                let raw: DevInode = cursor.read()?;
                basic(raw.nlink, device(inode_type, raw.rdev))
            }
            format::LBLKDEV_TYPE | format::LCHRDEV_TYPE => {
                let raw: LDevInode = cursor.read()?;
                Ok(Self { link_count: raw.nlink, xattr: raw.xattr, data: device(inode_type, raw.rdev) })
            }
            format::FIFO_TYPE => basic(cursor.read::<IpcInode>()?.nlink, InodeData::Fifo),
            format::SOCKET_TYPE => basic(cursor.read::<IpcInode>()?.nlink, InodeData::Socket),
            format::LFIFO_TYPE | format::LSOCKET_TYPE => {
                let raw: LIpcInode = cursor.read()?;
                let data = if inode_type == format::LFIFO_TYPE { InodeData::Fifo } else { InodeData::Socket };
                Ok(Self { link_count: raw.nlink, xattr: raw.xattr, data })
            }
            _ => Err(Error::corrupt("inode of an unknown type", cursor.position().place())),
        }
    }

    fn read_directory(inode_type: u16, cursor: &mut MetadataCursor<'_>) -> Result<Self> {
        let place = cursor.position().place();
        let raw = if inode_type == format::LDIR_TYPE {
            cursor.read()?
        } else {
            let raw: DirInode = cursor.read()?;
            LDirInode {
                nlink: raw.nlink,
                file_size: u32::from(raw.file_size),
                start_block: raw.start_block,
                parent_inode: raw.parent_inode,
                i_count: 0,
                offset: raw.offset,
                xattr: format::ABSENT_XATTRS,
            }
        };
        if raw.file_size < format::DIRECTORY_SIZE_EXTRA {
            return Err(Error::corrupt("directory of fewer than 3 bytes", place));
        }
        let data = InodeData::Directory(DirectoryInode {
            size: raw.file_size,
            start_block: raw.start_block,
            offset: raw.offset,
            parent: raw.parent_inode,
            index_count: raw.i_count,
            index: cursor.position(),
        });
        Ok(Self { link_count: raw.nlink, xattr: raw.xattr, data })
    }

    fn read_regular(inode_type: u16, cursor: &mut MetadataCursor<'_>, block_size_log2: u8) -> Result<Self> {
        let place = cursor.position().place();
        let raw = if inode_type == format::LREG_TYPE {
            cursor.read()?
        } else {
            let raw: RegInode = cursor.read()?;
            LRegInode {
                start_block: u64::from(raw.start_block),
                file_size: u64::from(raw.file_size),
                sparse: 0,
                nlink: 1,
                fragment: raw.fragment,
                offset: raw.offset,
                xattr: format::ABSENT_XATTRS,
            }
        };
        if raw.file_size > FILE_BYTES_MAX {
            return Err(Error::corrupt("file of 2^63 bytes or more", place));
        }
        let whole_blocks = raw.file_size.wrapping_shr(u32::from(block_size_log2));
        let has_tail = whole_blocks.wrapping_shl(u32::from(block_size_log2)) != raw.file_size;
        let fragment = (raw.fragment != format::ABSENT_FRAGMENT)
            .then_some(FragmentTail { index: raw.fragment, offset: raw.offset });
        if fragment.is_some() && !has_tail {
            return Err(Error::corrupt("file with a fragment, but without a partial last block", place));
        }
        let block_count = whole_blocks.saturating_add(u64::from(has_tail && fragment.is_none()));
        let data = InodeData::Regular(RegularInode {
            size: raw.file_size,
            sparse: raw.sparse,
            start: raw.start_block,
            fragment,
            block_count,
            block_list: cursor.position(),
        });
        Ok(Self { link_count: raw.nlink, xattr: raw.xattr, data })
    }

    fn read_symlink(inode_type: u16, cursor: &mut MetadataCursor<'_>) -> Result<Self> {
        let place = cursor.position().place();
        let raw: SymlinkInode = cursor.read()?;
        if raw.symlink_size > SYMLINK_BYTES_MAX {
            return Err(Error::corrupt("symbolic link of more than 4096 bytes", place));
        }
        let target = cursor.position();
        let mut xattr = format::ABSENT_XATTRS;
        if inode_type == format::LSYMLINK_TYPE {
            cursor.skip(u64::from(raw.symlink_size))?;
            xattr = cursor.read_u32()?;
        }
        let data = InodeData::Symlink { size: raw.symlink_size, target };
        Ok(Self { link_count: raw.nlink, xattr, data })
    }
}

fn device(inode_type: u16, encoded: u32) -> InodeData {
    let number = DeviceNumber::from_encoded(encoded);
    match inode_type {
        format::BLKDEV_TYPE | format::LBLKDEV_TYPE => InodeData::BlockDevice(number),
        _ => InodeData::CharacterDevice(number),
    }
}
