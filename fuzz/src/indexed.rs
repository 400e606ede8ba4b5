//! An image around the inode and the index of one file, made from the bytes that the fuzzer gives.

use floe_erofs::format;
use floe_erofs::write::{
    AlgorithmConfiguration, DirectoryEntry, InodeData, InodeForm, InodeRecord, InodeRules, SuperBlockRecord,
    directory_bytes, superblock_bytes,
};
use floe_image::{FileType, Nid, Timestamp};

const BLOCK_SIZE: usize = 4096;
/// The blocks of the image: the superblock, the metadata, and what addresses point to.
const BLOCK_COUNT: usize = 64;
/// Where the metadata area begins, in bytes.
const METADATA: usize = BLOCK_SIZE;
/// The inode that packs fragments.
const PACKED: Nid = Nid(16);
const ROOT: Nid = Nid(1);
const TIME: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// The features of all images made here.
const FEATURES: u32 = format::FEATURE_INCOMPAT_ZERO_PADDING
    | format::FEATURE_INCOMPAT_COMPR_CFGS
    | format::FEATURE_INCOMPAT_CHUNKED_FILE
    | format::FEATURE_INCOMPAT_COMPR_HEAD2
    | format::FEATURE_INCOMPAT_ZTAILPACKING
    | format::FEATURE_INCOMPAT_FRAGMENTS;

/// An image whose superblock, root and packed inode are sound.
pub struct IndexedImage {
    /// All of it.
    pub bytes: Vec<u8>,
}

impl IndexedImage {
    /// The file whose inode, index and all that follows is as the fuzzer says.
    pub const FILE: Nid = Nid(32);

    /// The image for the bytes of the fuzzer, of which the first chooses features and the others begin with the inode of
    /// the file; `None` where they are too few or too many.
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
            AlgorithmConfiguration::Lz4 { window_bytes: u16::MAX, pcluster_blocks_max: 256 },
            AlgorithmConfiguration::Lzma { dictionary_bytes: format::LZMA_MAX_DICT_SIZE },
            AlgorithmConfiguration::Deflate { window_log2: 15 },
            AlgorithmConfiguration::Zstd { window_log2: 20 },
        ],
        devices: Vec::new(),
        long_prefixes: Vec::new(),
        packed_nid: PACKED.0,
    })
}

fn inode(file_type: FileType, size: u64, data: InodeData) -> InodeRecord {
    InodeRecord { file_type, permissions: 0o755, uid: 0, gid: 0, link_count: 2, size, modified: TIME, number: 1, data }
}
