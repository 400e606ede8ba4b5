//! A file system that shows the tree of another one in another way.

use std::{ops::ControlFlow, sync::Arc};

use crate::{
    Attr, BlockReader, ByteRange, Capabilities, DirectoryCursor, Dirent, Extent, FileSystem, FileSystemInfo, Nid,
    Outline, Result, SeekTarget, Xattr,
};

/// Changes the attributes of an inode.
type ChangeAttr = dyn Fn(Attr) -> Attr + Send + Sync;

/// A file system with the tree of another one, of which it shows a directory as the root, or other attributes.
pub struct DerivedFileSystem {
    inner: Arc<dyn FileSystem>,
    root: Nid,
    change: Option<Arc<ChangeAttr>>,
}

impl DerivedFileSystem {
    /// `inner` with the directory `root` as its root.
    pub fn below(inner: Arc<dyn FileSystem>, root: Nid) -> Self {
        Self { inner, root, change: None }
    }

    /// `inner` with the attributes that `change` makes of its own. Where data is follows from the attributes that `inner` has.
    pub fn with_attrs(inner: Arc<dyn FileSystem>, change: impl Fn(Attr) -> Attr + Send + Sync + 'static) -> Self {
        Self { root: inner.root(), inner, change: Some(Arc::new(change)) }
    }

    fn changed(&self, attr: Attr) -> Attr {
        match &self.change {
            Some(change) => change(attr),
            None => attr,
        }
    }
}

/// Each method is forwarded, those with an implementation of their own in the trait too: an inner file system may know better.
impl FileSystem for DerivedFileSystem {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        let inner = Arc::clone(&self.inner).with_reader(reader);
        Arc::new(Self { inner, root: self.root, change: self.change.clone() })
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
        Ok(self.changed(self.inner.attr(nid)?))
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

    fn misnumbered_nid_max(&self) -> Option<Nid> {
        self.inner.misnumbered_nid_max()
    }

    fn possible_numbers(&self, first: u64) -> Result<u64> {
        self.inner.possible_numbers(first)
    }

    fn outline(&self, nid: Nid) -> Result<Outline> {
        let outline = self.inner.outline(nid)?;
        Ok(Outline { attr: self.changed(outline.attr), ..outline })
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

    fn has_xattrs(&self) -> bool {
        self.inner.has_xattrs()
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
