//! A file system whose files all belong to one user or group.

use std::{ops::ControlFlow, sync::Arc};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DirectoryCursor, Dirent, Extent, FileSystem, FileSystemInfo, Nid,
    Outline, Result, SeekTarget, Xattr,
};

use floe_front::{NO_GROUP, OWNER_ALONE};

/// The owner of all files of a mount, instead of the image's owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owners {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The only user whom the root directory admits, and who owns it.
    pub only_user: Option<u32>,
}

/// A file system with replaced owners.
struct Owned {
    inner: Arc<dyn FileSystem>,
    owners: Owners,
}

impl Owners {
    /// Wraps `file_system` with these owners.
    pub(crate) fn of(self, file_system: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        if self == Self::default() { file_system } else { Arc::new(Owned { inner: file_system, owners: self }) }
    }

    fn replace(self, attr: Attr, root: Nid) -> Attr {
        match self.only_user.filter(|_| attr.nid == root) {
            Some(uid) => Attr { uid, gid: NO_GROUP, permissions: OWNER_ALONE, ..attr },
            None => Attr { uid: self.uid.unwrap_or(attr.uid), gid: self.gid.unwrap_or(attr.gid), ..attr },
        }
    }
}

impl FileSystem for Owned {
    fn with_reader(self: Arc<Self>, reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        Arc::new(Self { inner: Arc::clone(&self.inner).with_reader(reader), owners: self.owners })
    }

    fn root(&self) -> Nid {
        self.inner.root()
    }

    fn info(&self) -> FileSystemInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        Ok(self.owners.replace(self.inner.attr(nid)?, self.root()))
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
        Ok(Outline { attr: self.owners.replace(outline.attr, self.root()), ..outline })
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
