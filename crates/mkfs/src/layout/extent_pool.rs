//! The extents of all compressed files, one file after the other.

use floe_erofs::write::CompressedExtent;

use crate::error::{Error, Result};

/// The extents of files.
#[derive(Default)]
pub(crate) struct ExtentPool {
    extents: Vec<CompressedExtent>,
}

/// The extents of a file in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PooledExtents {
    first: u32,
    count: u32,
}

impl ExtentPool {
    /// Adds the extents of a file.
    pub(crate) fn add(&mut self, extents: &[CompressedExtent]) -> Result<PooledExtents> {
        let too_many = |_| Error::Layout("the files have too many pclusters: use larger ones".into());
        let first = u32::try_from(self.extents.len()).map_err(too_many)?;
        let count = u32::try_from(extents.len()).map_err(too_many)?;
        self.extents.extend_from_slice(extents);
        Ok(PooledExtents { first, count })
    }

    /// The extents of a file.
    pub(crate) fn of(&self, pooled: PooledExtents) -> &[CompressedExtent] {
        let after = self.extents.get(pooled.first as usize..);
        after.and_then(|extents| extents.get(..pooled.count as usize)).unwrap_or_default()
    }
}
