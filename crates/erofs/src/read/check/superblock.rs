//! Checks of the superblock.

use floe_image::{Place, Result};

use super::Finding;
use crate::{
    format::{self, SUPER_OFFSET},
    read::{algorithms, volume::Volume},
};

/// Checks the superblock of an image that could be opened.
///
/// # Errors
/// A configuration cannot be read.
pub(super) fn findings(volume: &Volume) -> Result<Vec<Finding>> {
    let (superblock, mut findings) = (&volume.superblock, Vec::new());
    let mut warn = |rule: &'static str| {
        findings.push(Finding::warning(rule, Place::at(SUPER_OFFSET)));
    };
    let image_blocks = superblock.block_size.blocks(volume.image_len);
    if superblock.block_count > image_blocks {
        warn("block count past the end of the image");
    }
    let has_device_table = superblock.features.has(format::FEATURE_INCOMPAT_DEVICE_TABLE);
    if superblock.raw.extra_devices != 0 && !has_device_table {
        warn("number of devices without a device table");
    }
    if algorithms::pcluster_blocks_max(volume.reader.as_ref(), superblock)?
        .is_some_and(|blocks| u64::from(blocks) << superblock.block_size.log2() > format::PCLUSTER_MAX_SIZE)
    {
        warn("LZ4 pclusters above 1 MiB announced");
    }
    Ok(findings)
}
