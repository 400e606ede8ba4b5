//! Limits the number of entries that a walk may return.

use floe_image::{Error, FileSystem, Nid, Place};

/// The number of entries allowed in any image. The image's own limit, whose computation reads metadata, applies only
/// above it.
const FREE_COUNT: u64 = 1 << 16;

/// Limits the number of entries that a walk of a tree may return, so that the walk ends even if directories share their
/// content.
#[derive(Clone, Copy, Default, Debug)]
pub struct EntryLimit {
    found: u64,
    max: Option<u64>,
}

impl EntryLimit {
    /// Counts an entry of `directory`.
    ///
    /// # Errors
    /// The walk has returned more entries than the image has room for.
    pub fn take(&mut self, file_system: &dyn FileSystem, directory: Nid) -> Result<(), Error> {
        self.found += 1;
        if self.found > FREE_COUNT && self.found > *self.max.get_or_insert_with(|| file_system.entry_count_max()) {
            let rule = "directories share their content: more entries than the image has room for";
            return Err(Error::corrupt(rule, Place::inode(directory)));
        }
        Ok(())
    }
}
