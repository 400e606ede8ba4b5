//! An image around the inode and the index of one file, which come from fuzzer input.

use floe_erofs::{
    AlgorithmConfiguration, format,
    write::{
        DirectoryEntry, InodeData, InodeForm, InodeRecord, InodeRules, SuperBlockRecord, directory_bytes,
        superblock_bytes,
    },
};
use floe_image::{FileType, Nid, Timestamp};

const BLOCK_SIZE: usize = 4096;
/// The number of blocks in the image: superblock, metadata, and targets of addresses.
const BLOCK_COUNT: usize = 64;
/// The offset of the metadata area in bytes.
const METADATA: usize = BLOCK_SIZE;
/// The packed inode.
const PACKED: Nid = Nid(16);
const ROOT: Nid = Nid(1);
const TIME: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// The features of all these images.
const FEATURES: u32 = format::FEATURE_INCOMPAT_ZERO_PADDING
    | format::FEATURE_INCOMPAT_COMPR_CFGS
    | format::FEATURE_INCOMPAT_CHUNKED_FILE
    | format::FEATURE_INCOMPAT_COMPR_HEAD2
    | format::FEATURE_INCOMPAT_ZTAILPACKING
    | format::FEATURE_INCOMPAT_FRAGMENTS;

/// An image with a valid superblock, root and packed inode.
pub struct IndexedImage {
    /// The bytes of the image.
    pub bytes: Vec<u8>,
}

impl IndexedImage {
    /// The file whose inode and index come from the fuzzer.
    pub const FILE: Nid = Nid(32);

    /// Builds the image: the first byte of the input selects features, the rest begins with the inode of the file.
    /// `None` if the input is too short or too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let (choice, file) = bytes.split_first()?;
        let file_start = METADATA + Self::FILE.0 as usize * format::INODE_SLOT_SIZE as usize;
        if file.len() > BLOCK_COUNT * BLOCK_SIZE - file_start {
            return None;
        }
        let wide = choice & 1 != 0;
        let rules = InodeRules { epoch: TIME, wide, form: InodeForm::Smallest };
        let names = directory_bytes(
            &[(&b"."[..], ROOT), (b"..", ROOT)].map(|(name, nid)| DirectoryEntry {
                name,
                nid: nid.0,
                file_type: FileType::Directory,
            }),
            BLOCK_SIZE as u64,
        );
        let mut image = superblock(wide);
        image.resize(BLOCK_COUNT * BLOCK_SIZE, 0);
        let mut put = |start: usize, bytes: &[u8]| image[start..start + bytes.len()].copy_from_slice(bytes);
        let slot = |nid: Nid| METADATA + nid.0 as usize * format::INODE_SLOT_SIZE as usize;
        let root = inode(FileType::Directory, names.len() as u64, InodeData::Flat { start_block: None, inline: true });
        put(slot(ROOT), &[root.to_bytes(&rules, 0), names].concat());
        let packed = InodeData::Flat { start_block: Some(1), inline: false };
        let packed = inode(FileType::Regular, ((BLOCK_COUNT - 1) * BLOCK_SIZE) as u64, packed);
        put(slot(PACKED), &packed.to_bytes(&rules, 0));
        put(slot(Self::FILE), file);
        Some(Self { bytes: image })
    }
}

fn superblock(wide: bool) -> Vec<u8> {
    superblock_bytes(&SuperBlockRecord {
        feature_compat: 0,
        feature_incompat: FEATURES | if wide { format::FEATURE_INCOMPAT_48BIT } else { 0 },
        block_size_log2: BLOCK_SIZE.ilog2() as u8,
        root_nid: ROOT.0,
        inode_count: 3,
        epoch: TIME,
        build_time: 0,
        blocks: BLOCK_COUNT as u64,
        metadata_block: (METADATA / BLOCK_SIZE) as u32,
        xattr_block: 0,
        uuid: [0; 16],
        volume_name: [0; 16],
        configurations: vec![
            AlgorithmConfiguration {
                algorithm: format::COMPRESSION_LZ4,
                window_bytes: 65_535,
                pcluster_blocks_max: 256,
            },
            AlgorithmConfiguration::new(format::COMPRESSION_LZMA, format::LZMA_MAX_DICT_SIZE),
            AlgorithmConfiguration::new(format::COMPRESSION_DEFLATE, 32 << 10),
            AlgorithmConfiguration::new(format::COMPRESSION_ZSTD, format::ZSTD_MAX_DICT_SIZE),
        ],
        devices: Vec::new(),
        long_prefixes: Vec::new(),
        packed_nid: PACKED.0,
        metabox_nid: None,
        checksum: true,
    })
}

fn inode(file_type: FileType, size: u64, data: InodeData) -> InodeRecord {
    InodeRecord { file_type, permissions: 0o755, uid: 0, gid: 0, link_count: 2, size, modified: TIME, number: 1, data }
}
