//! Finds inodes by number, and the parents of directories (section "Export table").

use std::sync::OnceLock;

use floe_image::{Error, Nid, Place, Result};

use super::{DirectoryInode, Squashfs};

/// The maximum number of inodes that an image without an export table may have for lookups by number. The table in
/// memory then takes 64 MiB.
const INODES_MAX: usize = 1 << 22;

/// The inodes of an image without an export table, sorted by number, or the error of reading them. Filled on first use;
/// a transient error is not kept.
pub(super) type InodeNumbers = OnceLock<Result<Vec<(u32, Nid)>>>;

impl Squashfs {
    /// The inode with this number; `None` if there is none. The caller checks that the inode has this number, because
    /// an export table may be wrong.
    ///
    /// Without an export table, the first call reads the whole inode table.
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
                Err(error) if error.is_transient() => return Err(error),
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
            return Err(corrupt("directory whose parent number leads to another inode"));
        }
        Ok(parent)
    }

    fn number_inodes(&self) -> Result<Vec<(u32, Nid)>> {
        let mut numbers = Vec::new();
        for inode in self.scan_inodes() {
            let inode = inode?;
            if numbers.len() >= INODES_MAX {
                return Err(Error::unsupported(
                    "lookups by number in a SquashFS image with more than 4194304 inodes and no export table",
                ));
            }
            numbers.push((inode.number, inode.nid));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
