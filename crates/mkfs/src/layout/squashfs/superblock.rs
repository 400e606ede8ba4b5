//! The superblock, and the options of the compressor behind it.

use floe_codec::encode::BlockCompression;
use floe_squashfs::format::{
    self, GzipOptions, Lz4Options, METADATA_BYTES, SUPERBLOCK_BYTES, SuperBlock, XzOptions, ZstdOptions,
};

use crate::{
    options::{Options, PackedTails, SquashfsOptions, Times},
    tree::{OrderedNode, Tree},
};

/// The version of LZ4 blocks.
const LZ4_VERSION: u32 = 1;
/// The default settings of compressors, which need not be stored.
const GZIP_DEFAULTS: (u8, u8) = (9, 15);
const ZSTD_LEVEL_DEFAULT: i32 = 15;
/// Set in the length word of an uncompressed metadata block.
const UNCOMPRESSED: u16 = 1 << 15;

/// Where the tables are.
#[derive(Default)]
pub(super) struct SuperblockFacts {
    pub(super) inode_count: u32,
    pub(super) fragment_count: u32,
    pub(super) id_count: u16,
    pub(super) root: u64,
    pub(super) bytes_used: u64,
    pub(super) inode_table_start: u64,
    pub(super) directory_table_start: u64,
    pub(super) fragment_table_start: u64,
    pub(super) export_table_start: u64,
    pub(super) id_table_start: u64,
    pub(super) xattr_id_table_start: u64,
}

/// Room for the superblock, and the options of the compressor if they are not the defaults.
pub(super) fn head(squashfs: &SquashfsOptions) -> Vec<u8> {
    let mut head = vec![0; usize::try_from(SUPERBLOCK_BYTES).unwrap_or(0)];
    if let Some(options) = compressor_options(squashfs) {
        head.extend((u16::try_from(options.len()).unwrap_or(0) | UNCOMPRESSED).to_le_bytes());
        head.extend(options);
    }
    head
}

/// The build time in seconds since 1970: the one in the options, or the latest time of all inodes.
pub(super) fn built_seconds(tree: &Tree, order: &[OrderedNode], options: &Options, squashfs: &SquashfsOptions) -> u32 {
    let of_times = || match options.times {
        Times::Own => order.iter().map(|ordered| tree.node(ordered.node).metadata.modified.seconds).max().unwrap_or(0),
        Times::OwnBuiltAt(seconds) | Times::All(seconds) | Times::AtMost(seconds) => seconds,
    };
    let seconds = squashfs.built_at.unwrap_or_else(of_times);
    u32::try_from(seconds.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
}

/// The superblock.
pub(super) fn superblock(
    facts: &SuperblockFacts,
    mkfs_time: u32,
    options: &Options,
    squashfs: &SquashfsOptions,
) -> SuperBlock {
    SuperBlock {
        s_magic: format::MAGIC,
        inodes: facts.inode_count,
        mkfs_time,
        block_size: 1 << squashfs.block_size_log2,
        fragments: facts.fragment_count,
        compression: compressor_id(squashfs.compression),
        block_log: u16::from(squashfs.block_size_log2),
        flags: flags(options, squashfs),
        no_ids: facts.id_count,
        s_major: format::MAJOR,
        s_minor: format::MINOR,
        root_inode: facts.root,
        bytes_used: facts.bytes_used,
        id_table_start: facts.id_table_start,
        xattr_id_table_start: facts.xattr_id_table_start,
        inode_table_start: facts.inode_table_start,
        directory_table_start: facts.directory_table_start,
        fragment_table_start: facts.fragment_table_start,
        lookup_table_start: facts.export_table_start,
    }
}

fn compressor_id(compression: BlockCompression) -> u16 {
    match compression {
        BlockCompression::Gzip { .. } => 1,
        BlockCompression::Lzma => 2,
        BlockCompression::Lzo => 3,
        BlockCompression::Xz { .. } => 4,
        BlockCompression::Lz4 { .. } => 5,
        BlockCompression::Zstd { .. } => 6,
    }
}

fn compressor_options(squashfs: &SquashfsOptions) -> Option<Vec<u8>> {
    match squashfs.compression {
        BlockCompression::Gzip { level, window_log2, strategies } => {
            let options = GzipOptions { compression_level: level.into(), window_size: window_log2.into(), strategies };
            ((level, window_log2) != GZIP_DEFAULTS || strategies > 1).then(|| options.to_bytes())
        }
        BlockCompression::Xz { dictionary_bytes, filters } => {
            let options = XzOptions { dictionary_size: dictionary_bytes, flags: filters };
            // Without options, readers assume a dictionary as large as a block, or as a metadata block if that is larger.
            let is_default = dictionary_bytes == (1 << squashfs.block_size_log2).max(METADATA_BYTES) && filters == 0;
            (!is_default).then(|| options.to_bytes())
        }
        BlockCompression::Lz4 { is_high } => {
            Some(Lz4Options { version: LZ4_VERSION, flags: is_high.into() }.to_bytes())
        }
        BlockCompression::Zstd { level } => {
            (level != ZSTD_LEVEL_DEFAULT).then(|| ZstdOptions { compression_level: level }.to_bytes())
        }
        BlockCompression::Lzma | BlockCompression::Lzo => None,
    }
}

fn flags(options: &Options, squashfs: &SquashfsOptions) -> u16 {
    let SquashfsOptions { uncompressed, tails, .. } = squashfs;
    [
        (format::FLAG_UNCOMPRESSED_INODES, uncompressed.inodes),
        (format::FLAG_UNCOMPRESSED_DATA, uncompressed.data),
        (format::FLAG_UNCOMPRESSED_FRAGMENTS, uncompressed.fragments),
        (format::FLAG_NO_FRAGMENTS, *tails == PackedTails::None),
        (format::FLAG_ALWAYS_FRAGMENTS, *tails == PackedTails::All),
        (format::FLAG_DUPLICATES, squashfs.shares_files),
        (format::FLAG_EXPORTABLE, squashfs.exports),
        (format::FLAG_UNCOMPRESSED_XATTRS, uncompressed.xattrs),
        (format::FLAG_NO_XATTRS, !options.xattrs.keep),
        (format::FLAG_COMPRESSOR_OPTIONS, compressor_options(squashfs).is_some()),
        (format::FLAG_UNCOMPRESSED_IDS, uncompressed.ids || uncompressed.inodes),
    ]
    .into_iter()
    .fold(0, |flags, (flag, is_set)| if is_set { flags | flag } else { flags })
}
