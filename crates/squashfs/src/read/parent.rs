//! Finds the parents of directories.

use std::{collections::HashMap, sync::OnceLock};

use floe_image::{Error, Nid, Place, Result};

use super::{DirectoryInode, Inode, InodeData, Squashfs};

/// The maximum number of directories for which `..` works without an export table; their index takes 16 MiB.
const DIRECTORIES_MAX: usize = 1 << 20;

/// Maps inode numbers of directories to references, for an image without an export table. Built on first use; errors
/// that may pass are not stored.
pub(super) type DirectoryNumbers = OnceLock<Result<HashMap<u32, Nid>>>;

impl Squashfs {
    /// The parent of a directory; the root is its own parent.
    ///
    /// An inode states its parent by inode number, which only the export table maps to an inode (section "Export
    /// table"). Without that table, the whole inode table is read once.
    pub(crate) fn parent(&self, nid: Nid, directory: &DirectoryInode) -> Result<Nid> {
        if nid == self.superblock.root {
            return Ok(nid);
        }
        if directory.parent == self.root_number {
            return Ok(self.superblock.root);
        }
        let parent = match &self.export {
            Some(export) => {
                let index = directory.parent.checked_sub(1);
                let index = index.ok_or(Error::corrupt("directory whose parent is inode 0", Place::inode(nid)))?;
                Nid(export.cursor_at(&self.metadata, index)?.read_u64()?)
            }
            None => {
                let numbers = match self.directory_numbers.get() {
                    Some(numbers) => numbers,
                    None => match self.number_directories() {
                        Err(error) if error.is_transient() => return Err(error),
                        numbers => self.directory_numbers.get_or_init(|| numbers),
                    },
                };
                let numbers = numbers.as_ref().map_err(Clone::clone)?;
                let found = numbers.get(&directory.parent).copied();
                found.ok_or(Error::corrupt("directory whose parent does not exist", Place::inode(nid)))?
            }
        };
        let inode = self.inode(parent)?;
        if inode.number != directory.parent || inode.directory().is_err() {
            return Err(Error::corrupt("directory whose parent has another inode number", Place::inode(nid)));
        }
        Ok(parent)
    }

    fn number_directories(&self) -> Result<HashMap<u32, Nid>> {
        let mut numbers = HashMap::new();
        for inode in self.scan_inodes() {
            let Inode { nid, number, data: InodeData::Directory(_), .. } = inode? else { continue };
            if numbers.len() >= DIRECTORIES_MAX {
                return Err(Error::unsupported("SquashFS without an export table and with over a million directories"));
            }
            numbers.insert(number, nid);
        }
        Ok(numbers)
    }
}
