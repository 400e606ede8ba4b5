//! The files of the virtual image as a file system.

use std::{ops::ControlFlow, sync::Arc};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DeviceNumber, DirectoryCursor, Dirent, Error, Extent, FileSystem,
    FileSystemInfo, FileType, Nid, Place, Result,
};

use super::{IMAGE, LARGE, ROOT, VirtualImage};
use crate::{
    geometry::{BLOCK_BYTES, LARGE_NAME},
    view::View,
};

impl FileSystem for VirtualImage {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        let file_system = Arc::clone(&self.view.file_system).with_reader(reader);
        let view = View { file_system, ..self.view.clone() };
        Arc::new(Self { view, views: Arc::clone(&self.views), kept: self.kept.clone(), ..*self })
    }

    fn root(&self) -> Nid {
        ROOT
    }

    fn info(&self) -> FileSystemInfo {
        FileSystemInfo { inode_count: 3, ..self.view.file_system.info() }
    }

    fn capabilities(&self) -> Capabilities {
        self.view.file_system.capabilities()
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        let (file_type, permissions, size, link_count) = match nid {
            ROOT => (FileType::Directory, 0o500, BLOCK_BYTES, 2),
            IMAGE => (FileType::Regular, 0o400, self.len(), 1),
            LARGE => (FileType::Regular, 0o400, Self::LARGE_LEN, 1),
            _ => return Err(Error::corrupt("no such inode", Place::inode(nid))),
        };
        Ok(Attr {
            nid,
            inode_number: nid.0,
            file_type,
            permissions,
            uid: 0,
            gid: 0,
            size,
            link_count,
            modified: self.view.file_system.info().built,
            device: DeviceNumber::default(),
            blocks_512: 0,
        })
    }

    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        Some(Nid(inode_number))
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        check_directory(directory)?;
        Ok(match name {
            b"." | b".." => Some(ROOT),
            _ if name == Self::NAME.as_bytes() => Some(IMAGE),
            _ if name == LARGE_NAME.as_bytes() => Some(LARGE),
            _ => None,
        })
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        check_directory(directory)?;
        let entries = [
            (".", ROOT, FileType::Directory),
            ("..", ROOT, FileType::Directory),
            (Self::NAME, IMAGE, FileType::Regular),
            (LARGE_NAME, LARGE, FileType::Regular),
        ];
        for ((name, nid, file_type), next) in entries.into_iter().zip(1..) {
            let next = DirectoryCursor(next);
            if cursor < next
                && visit(Dirent { name: name.as_bytes(), nid, inode_number: nid.0, file_type, next }).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        Err(Error::WrongType { expected: "a symbolic link", nid })
    }

    fn xattr(&self, _nid: Nid, _name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _nid: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let len = match nid {
            IMAGE => self.len(),
            LARGE => Self::LARGE_LEN,
            _ => return Err(Error::WrongType { expected: "a regular file", nid }),
        };
        let (range, first, base) = (range.intersection(ByteRange::new(0, len)), extents.len(), self.address(nid, 0));
        self.map_addresses(ByteRange::new(base + range.offset(), range.len()), extents)?;
        for extent in extents.iter_mut().skip(first).filter(|_| base > 0) {
            extent.range = ByteRange::new(extent.range.offset() - base, extent.range.len());
        }
        Ok(())
    }
}

fn check_directory(nid: Nid) -> Result<()> {
    if nid == ROOT { Ok(()) } else { Err(Error::WrongType { expected: "a directory", nid }) }
}
