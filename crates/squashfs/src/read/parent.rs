//! Finds inodes by number, and the parents of directories (section "Export table"), without a table by a scan.

use floe_image::{Error, Nid, Place, Result};

use super::{
    DirectoryInode, Inode, Squashfs,
    metadata::{MetadataCursor, MetadataPosition},
    squashfs::Numbers,
};

/// The maximum number of inodes that an image without an export table may have for lookups by number. The table in
/// memory then takes 64 MiB.
const INODES_MAX: usize = 1 << 22;

const TOO_MANY_INODES: &str = "lookups by number in a SquashFS image with more than 4194304 inodes and no export table";

impl Squashfs {
    /// The inode with this number; `None` if there is none. The caller checks that the inode has this number, because
    /// an export table may be wrong.
    ///
    /// Without an export table, the first call with a number other than 0, which no inode has, reads the whole inode table.
    pub(crate) fn numbered(&self, number: u32) -> Result<Option<Nid>> {
        if let Some(export) = &self.export {
            let Some(index) = number.checked_sub(1).filter(|index| *index < export.entry_count()) else {
                return Ok(None);
            };
            return export.cursor_at(&self.metadata, index)?.read_u64().map(|reference| Some(Nid(reference)));
        }
        self.scanned(number)
    }

    /// The inode with this number in the inode table; `None` if there is none. The first call with a number other than 0, which no
    /// inode has, reads the whole table.
    fn scanned(&self, number: u32) -> Result<Option<Nid>> {
        if usize::try_from(self.superblock.inode_count).is_ok_and(|count| count > INODES_MAX) {
            return Err(Error::unsupported(TOO_MANY_INODES));
        }
        if number == 0 {
            return Ok(None);
        }
        let numbers = match self.inode_numbers.get() {
            Some(numbers) => numbers,
            None => {
                let numbers = self.number_inodes()?;
                self.inode_numbers.get_or_init(|| numbers)
            }
        };
        numbers.find(number)
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
        let find = |found: Result<Option<Nid>>| {
            let parent = found?.ok_or(corrupt("directory whose parent does not exist"))?;
            let inode = self.inode(parent)?;
            if inode.number != directory.parent || inode.directory().is_err() {
                return Err(corrupt("directory whose parent number leads to another inode"));
            }
            Ok(parent)
        };
        match find(self.numbered(directory.parent)) {
            // The export table is wrong, as some programs write it.
            Err(error) if self.export.is_some() && !error.is_transient() => {
                find(self.scanned(directory.parent)).map_err(|other| if other.is_transient() { other } else { error })
            }
            found => found,
        }
    }

    /// # Errors
    /// The inode table cannot be read now.
    fn number_inodes(&self) -> Result<Numbers> {
        let (mut sorted, mut error) = (Vec::new(), None);
        for inode in self.scan_inodes() {
            match inode {
                Err(transient) if transient.is_transient() => return Err(transient),
                Err(permanent) => error = Some(permanent),
                Ok(_) if sorted.len() >= INODES_MAX => error = Some(Error::unsupported(TOO_MANY_INODES)),
                Ok(inode) => sorted.push((inode.number, inode.nid)),
            }
            if error.is_some() {
                break;
            }
        }
        Ok(Numbers::new(sorted, error))
    }
}

/// Reads all inodes in table order, whether or not a directory refers to them. Ends with the table, after as many
/// inodes as the superblock counts, or with the first error.
pub(crate) struct InodeScan<'image> {
    squashfs: &'image Squashfs,
    cursor: MetadataCursor<'image>,
    left: u32,
}

impl Squashfs {
    pub(crate) fn scan_inodes(&self) -> InodeScan<'_> {
        let start = MetadataPosition { block: self.inode_table.start, offset: 0 };
        let cursor = self.metadata.cursor(self.inode_table, start);
        InodeScan { squashfs: self, cursor, left: self.superblock.inode_count }
    }
}

impl InodeScan<'_> {
    fn read_next(&mut self) -> Result<Inode> {
        let position = self.cursor.position();
        let block = position.block.saturating_sub(self.squashfs.inode_table.start);
        let nid = Nid(block.checked_shl(16).unwrap_or(u64::MAX) | u64::from(position.offset));
        let named = |error: Error| error.for_inode(nid);
        let inode = self.squashfs.read_inode(&mut self.cursor, nid).map_err(named)?;
        inode.skip_rest(&mut self.cursor).map_err(named)?;
        Ok(inode)
    }
}

impl Iterator for InodeScan<'_> {
    type Item = Result<Inode>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        if self.cursor.is_at_end() {
            self.left = 0;
            return None;
        }
        let inode = self.read_next();
        if inode.is_err() {
            self.left = 0;
        }
        Some(inode)
    }
}
