//! The format of an image, and the options that only SquashFS has.

use floe_codec::encode::BlockCompression;

use crate::error::{Error, Result};

/// The format of an image.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// EROFS. Its options are in [`Options`](crate::Options).
    #[default]
    Erofs,
    /// SquashFS 4.0. Options for blocks, compression, fragments, deduplication and chunks of EROFS have no effect.
    Squashfs(SquashfsOptions),
}

/// The options of a SquashFS image. [`SquashfsOptions::default`] has the defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SquashfsOptions {
    /// log2 of the block size, 12 to 20.
    pub block_size_log2: u8,
    /// The compression of all blocks.
    pub compression: BlockCompression,
    /// Which parts are not compressed.
    pub uncompressed: UncompressedParts,
    /// Which ends of files are packed together into fragment blocks.
    pub tails: PackedTails,
    /// Whether equal files are stored once.
    pub shares_files: bool,
    /// Whether blocks of zeros are holes.
    pub finds_holes: bool,
    /// Whether the image has an export table, which finds inodes by their numbers.
    pub exports: bool,
    /// The build time in seconds since 1970; `None` derives it from the times of inodes.
    pub built_at: Option<i64>,
    /// Whether the length of the image is rounded up to a multiple of 4096 bytes.
    pub pads: bool,
}

/// The parts of a SquashFS image that are not compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UncompressedParts {
    /// Inodes and directories.
    pub inodes: bool,
    /// The blocks of files.
    pub data: bool,
    /// Fragment blocks and their table.
    pub fragments: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// Owners and groups; they are not compressed either if inodes are not.
    pub ids: bool,
}

/// Which ends of files are packed together into fragment blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PackedTails {
    /// None.
    None,
    /// Files that are shorter than a block.
    #[default]
    SmallFiles,
    /// The last block of each file that does not fill it.
    All,
}

impl Default for SquashfsOptions {
    fn default() -> Self {
        Self {
            block_size_log2: 17,
            compression: BlockCompression::Zstd { level: 15 },
            uncompressed: UncompressedParts::default(),
            tails: PackedTails::SmallFiles,
            shares_files: true,
            finds_holes: true,
            exports: true,
            built_at: None,
            pads: true,
        }
    }
}

impl SquashfsOptions {
    /// The block size in bytes.
    pub(crate) fn block_len(&self) -> usize {
        1 << self.block_size_log2
    }

    /// Rejects values out of range.
    pub(crate) fn check(&self) -> Result<()> {
        if !(12..=20).contains(&self.block_size_log2) {
            return Err(Error::Option(
                "the block size of SquashFS is a power of two from 4096 to 1048576 bytes".into(),
            ));
        }
        if let BlockCompression::Xz { dictionary_bytes, .. } = self.compression
            && usize::try_from(dictionary_bytes).is_ok_and(|bytes| bytes > self.block_len().max(8192))
        {
            return Err(Error::Option("the xz dictionary must not be larger than the block size".into()));
        }
        Ok(self.compression.encoder().map(|_| ())?)
    }
}
