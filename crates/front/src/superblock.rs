//! The superblock of virtual images and of kept ones.

use floe_erofs::{
    AlgorithmConfiguration,
    format::{
        FEATURE_COMPAT_MTIME, FEATURE_INCOMPAT_CHUNKED_FILE, FEATURE_INCOMPAT_COMPR_CFGS,
        FEATURE_INCOMPAT_DEVICE_TABLE, FEATURE_INCOMPAT_ZERO_PADDING,
    },
    write::{Device as DeviceRecord, SuperBlockRecord, superblock_bytes},
};
use floe_image::FileSystemInfo;

use crate::geometry::{
    BLOCK_BYTES, BLOCK_LOG2, KEPT_DATA_BLOCK, KEPT_META_BLOCK, KEPT_PLAIN_BLOCK, LARGE_NAME, META_BLOCK,
};

/// The tag of the device with the data of small files.
const SMALL_TAG: &str = "small";

/// The tag of the original, if it is a device.
const ORIGINAL_TAG: &str = "original";

/// What the superblock of a kept image says besides.
pub(crate) struct KeptAreas {
    /// The number of blocks on the device with the data of small files.
    pub(crate) data_blocks: u32,
    /// The number of blocks of the original up to the last one that the kernel reads by itself; `None` if it is no device.
    pub(crate) image_blocks: Option<u32>,
    /// The algorithms that the kernel decodes there.
    pub(crate) algorithms: Vec<AlgorithmConfiguration>,
    /// The first block of shared extended attributes; 0 if there are none.
    pub(crate) xattr_block: u32,
}

/// The block with the superblock of the virtual image, or of a kept image.
pub(crate) fn superblock(original: &FileSystemInfo, root_nid: u64, kept: Option<&KeptAreas>) -> Vec<u8> {
    // The device has no blocks of its own, so that statfs shows the original's size. Chunks with a device number
    // need only its entry.
    let mut devices = vec![DeviceRecord { tag: LARGE_NAME.into(), blocks: 0, unified_block: 0 }];
    let image_blocks = kept.and_then(|kept| kept.image_blocks);
    let kept_devices = [
        (SMALL_TAG, kept.map(|kept| kept.data_blocks), KEPT_DATA_BLOCK),
        (ORIGINAL_TAG, image_blocks, KEPT_PLAIN_BLOCK),
    ];
    devices.extend(kept_devices.into_iter().filter_map(|(tag, blocks, start)| {
        Some(DeviceRecord { tag: tag.into(), blocks: blocks?.into(), unified_block: start.into() })
    }));
    let device_blocks: u64 = devices.iter().map(|device| device.blocks).sum();
    let bytes = original.block_count.saturating_mul(original.block_size.into());
    let configurations = kept.map_or_else(Vec::new, |kept| kept.algorithms.clone());
    let compression = match configurations.is_empty() {
        true => 0,
        false => FEATURE_INCOMPAT_ZERO_PADDING | FEATURE_INCOMPAT_COMPR_CFGS,
    };
    let mut volume_name = [0; 16];
    for (byte, given) in volume_name.iter_mut().zip(&original.label) {
        *byte = *given;
    }
    superblock_bytes(&SuperBlockRecord {
        feature_compat: FEATURE_COMPAT_MTIME,
        feature_incompat: FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE | compression,
        block_size_log2: BLOCK_LOG2,
        root_nid,
        inode_count: original.inode_count,
        epoch: original.built,
        build_time: 0,
        // `statfs` shows the sum of this number and those of the devices: the size of the original, as far as possible.
        blocks: bytes.div_ceil(BLOCK_BYTES).min(u32::MAX.into()).saturating_sub(device_blocks),
        metadata_block: if kept.is_some() { KEPT_META_BLOCK } else { META_BLOCK },
        xattr_block: kept.map_or(0, |kept| kept.xattr_block),
        uuid: original.uuid.unwrap_or_default(),
        volume_name,
        configurations,
        devices,
        long_prefixes: Vec::new(),
        fingerprint_prefix: None,
        packed_nid: 0,
        metabox_nid: None,
        checksum: true,
    })
}
