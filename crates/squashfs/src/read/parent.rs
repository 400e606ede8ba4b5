//! From numbers to inodes, and parents of directories.

use std::sync::OnceLock;

use floe_image::{Error, Nid, Place, Result};

use super::{DirectoryInode, Squashfs};

/// In an image without an export table, numbers lead to this many inodes at most; they take 64 MiB.
const INODES_MAX: usize = 1 << 22;

/// The inodes of an image without an export table by their numbers, read when they are first needed. What may succeed later
/// is not remembered.
pub(super) type InodeNumbers = OnceLock<Result<Vec<(u32, Nid)>>>;

impl Squashfs {
    /// The inode with a number, or `None` where there is none. What the export table says is not compared with the inode.
    ///
    /// Only the export table leads from a number to an inode (section "Export table"). Where there is none, the whole inode
    /// table is read once.
    pub(crate) fn numbered(&self, number: u32) -> Result<Option<Nid>> {
        if let Some(export) = &self.export {
            let Some(index) = number.checked_sub(1).filter(|index| *index < export.entry_count()) else {
                return Ok(None);
            };
            return export.cursor_at(&self.metadata, index)?.read_u64().map(|reference| Some(Nid(reference)));
        }
        let numbers = match self.inode_numbers.get() {
            Some(numbers) => numbers,
            None => match self.number_inodes() {
                Err(error) if error.is_passing() => return Err(error),
                numbers => self.inode_numbers.get_or_init(|| numbers),
            },
        };
        let numbers = numbers.as_ref().map_err(Clone::clone)?;
        let found = numbers.binary_search_by_key(&number, |(number, _)| *number).ok();
        Ok(found.and_then(|index| numbers.get(index)).map(|(_, nid)| *nid))
    }

    /// The parent of a directory; the root is its own.
    pub(crate) fn parent(&self, nid: Nid, directory: &DirectoryInode) -> Result<Nid> {
        if nid == self.superblock.root {
            return Ok(nid);
        }
        if directory.parent == self.root_number {
            return Ok(self.superblock.root);
        }
        let corrupt = |rule| Error::corrupt(rule, Place::inode(nid));
        if directory.parent == 0 {
            return Err(corrupt("directory whose parent is inode 0"));
        }
        let parent = self.numbered(directory.parent)?.ok_or(corrupt("directory whose parent does not exist"))?;
        let inode = self.inode(parent)?;
        if inode.number != directory.parent || inode.directory().is_err() {
            return Err(corrupt("directory whose parent is not what its number says"));
        }
        Ok(parent)
    }

    fn number_inodes(&self) -> Result<Vec<(u32, Nid)>> {
        let mut numbers = Vec::new();
        for inode in self.scan_inodes() {
            let inode = inode?;
            if numbers.len() >= INODES_MAX {
                return Err(Error::unsupported("SquashFS without an export table and with over four million inodes"));
            }
            numbers.push((inode.number, inode.nid));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
