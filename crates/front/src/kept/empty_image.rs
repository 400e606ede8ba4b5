//! An image without files, to find out what the running kernel decodes.

use floe_erofs::{
    format::{FEATURE_INCOMPAT_COMPR_CFGS, FEATURE_INCOMPAT_ZERO_PADDING, INODE_SLOT_SIZE},
    write::{
        DirectoryEntry, InodeData, InodeForm, InodeRecord, InodeRules, SuperBlockRecord, directory_bytes,
        superblock_bytes,
    },
};
use floe_image::{FileType, Timestamp};

use super::algorithms::Algorithms;
use crate::geometry::{BLOCK_BYTES, BLOCK_LOG2};

/// An EROFS image whose superblock announces these algorithms. A kernel without one of them refuses to mount it.
pub fn empty_image(algorithms: Algorithms) -> Vec<u8> {
    let root_nid = BLOCK_BYTES / INODE_SLOT_SIZE;
    let entry = |name| DirectoryEntry { name, nid: root_nid, file_type: FileType::Directory };
    let listing = directory_bytes(&[entry(b"."), entry(b"..")], BLOCK_BYTES);
    let epoch = Timestamp::default();
    let root = InodeRecord {
        file_type: FileType::Directory,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        link_count: 2,
        size: listing.len() as u64,
        modified: epoch,
        number: 1,
        data: InodeData::Flat { start_block: None, inline: true },
    };
    let superblock = superblock_bytes(&SuperBlockRecord {
        feature_compat: 0,
        feature_incompat: FEATURE_INCOMPAT_ZERO_PADDING | FEATURE_INCOMPAT_COMPR_CFGS,
        block_size_log2: BLOCK_LOG2,
        root_nid,
        inode_count: 1,
        epoch,
        build_time: 0,
        blocks: 2,
        metadata_block: 0,
        xattr_block: 0,
        uuid: [0; 16],
        volume_name: [0; 16],
        configurations: algorithms.configurations(),
        devices: Vec::new(),
        long_prefixes: Vec::new(),
        fingerprint_prefix: None,
        packed_nid: 0,
        metabox_nid: None,
        checksum: true,
    });
    let mut bytes = superblock;
    bytes.resize(BLOCK_BYTES as usize, 0);
    bytes.extend(root.to_bytes(&InodeRules { epoch, wide: false, form: InodeForm::Smallest }, 0));
    bytes.extend(listing);
    bytes.resize(2 * BLOCK_BYTES as usize, 0);
    bytes
}
