//! How many entries a walk may find.

use floe_image::{Error, FileSystem, Nid, Place};

/// How many entries any image may have: to find out how many one has room for takes reading.
const FREE_COUNT: u64 = 1 << 16;

/// How many entries a walk of a tree may find, so that it ends where directories share their content.
#[derive(Clone, Copy, Default, Debug)]
pub struct EntryLimit {
    found: u64,
    max: Option<u64>,
}

impl EntryLimit {
    /// Counts an entry of `directory`.
    ///
    /// # Errors
    /// The image has no room for so many.
    pub fn take(&mut self, file_system: &dyn FileSystem, directory: Nid) -> Result<(), Error> {
        self.found += 1;
        if self.found > FREE_COUNT && self.found > *self.max.get_or_insert_with(|| file_system.entry_count_max()) {
            let rule = "directories share their content: more entries than the image has room for";
            return Err(Error::corrupt(rule, Place::inode(directory)));
        }
        Ok(())
    }
}
