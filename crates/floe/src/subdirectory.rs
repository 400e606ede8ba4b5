//! A directory of an image as the root of a file system.

use std::{ops::ControlFlow, sync::Arc};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DirectoryCursor, Dirent, Extent, FileSystem, FileSystemInfo, Nid,
    Outline, Result, SeekTarget, Xattr,
};

/// A file system whose root is a directory of another one.
pub(crate) struct Subdirectory {
    pub(crate) inner: Arc<dyn FileSystem>,
    pub(crate) root: Nid,
}

impl FileSystem for Subdirectory {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        Arc::new(Self { inner: Arc::clone(&self.inner).with_reader(reader), root: self.root })
    }

    fn root(&self) -> Nid {
        self.root
    }

    fn info(&self) -> FileSystemInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        self.inner.attr(nid)
    }

    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        self.inner.nid_of(inode_number)
    }

    fn find_number(&self, inode_number: u64) -> Result<Option<Nid>> {
        self.inner.find_number(inode_number)
    }

    fn inode_number_max(&self) -> u64 {
        self.inner.inode_number_max()
    }

    fn possible_numbers(&self, first: u64) -> Result<u64> {
        self.inner.possible_numbers(first)
    }

    fn outline(&self, nid: Nid) -> Result<Outline> {
        self.inner.outline(nid)
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        self.inner.lookup(directory, name)
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.read_dir(directory, cursor, visit)
    }

    fn entry_count_max(&self) -> u64 {
        self.inner.entry_count_max()
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        self.inner.read_link(nid)
    }

    fn xattr(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(nid, name)
    }

    fn xattr_names(&self, nid: Nid) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(nid)
    }

    fn xattrs(&self, nid: Nid, visit: &mut dyn FnMut(Xattr<'_>) -> ControlFlow<()>) -> Result<()> {
        self.inner.xattrs(nid, visit)
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        self.inner.map(nid, range, extents)
    }

    fn seek(&self, nid: Nid, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        self.inner.seek(nid, offset, target)
    }
}
