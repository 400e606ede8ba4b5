//! Inodes by their numbers.

use std::sync::OnceLock;

use floe_image::{Error, Nid, Result};

/// The inodes of an image without a correct export table. Filled on first use; a transient error is not kept.
pub(super) type InodeNumbers = OnceLock<Numbers>;

/// Inodes by their numbers, up to the first that cannot be read.
#[derive(Debug)]
pub(super) struct Numbers {
    sorted: Vec<(u32, Nid)>,
    /// Why the rest is missing.
    error: Option<Error>,
}

impl Numbers {
    /// Creates the table of these inodes; `error` is why others are missing.
    pub(super) fn new(mut inodes: Vec<(u32, Nid)>, error: Option<Error>) -> Self {
        inodes.sort_unstable();
        Self { sorted: inodes, error }
    }

    /// The inode with this number; `None` if there is none.
    ///
    /// # Errors
    /// It is not among the inodes that could be read.
    pub(super) fn find(&self, number: u32) -> Result<Option<Nid>> {
        let found = self.sorted.binary_search_by_key(&number, |(number, _)| *number).ok();
        match (found.and_then(|index| self.sorted.get(index)), &self.error) {
            (Some((_, nid)), _) => Ok(Some(*nid)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(None),
        }
    }
}
