//! The options of `floe mkfs --format squashfs`.

use floe_mkfs::{BlockCompression, PackedTails, SquashfsOptions, UncompressedParts};

use super::{Arguments, FragmentsArgument, listed};
use crate::fail::Fail;

/// The default block size in bytes.
pub(super) const BLOCK_BYTES: u64 = 128 << 10;
/// The smallest dictionary of xz, in bytes: the length of a metadata block.
const XZ_DICTIONARY_MIN: u32 = 8 << 10;
/// The window of gzip that its format suggests, as its logarithm.
const GZIP_WINDOW_LOG2: u8 = 15;

/// The compressors, with their default levels if they have levels.
const COMPRESSORS: [(&str, Option<i32>); 8] = [
    ("gzip", Some(9)),
    ("xz", None),
    ("lzma", None),
    ("lzo", None),
    ("lz4", None),
    ("lz4hc", None),
    ("zstd", Some(15)),
    ("none", None),
];

impl Arguments {
    /// The options of SquashFS.
    pub(super) fn squashfs(&self) -> Result<SquashfsOptions, Fail> {
        self.check_is_squashfs()?;
        let block_bytes = self.block_bytes();
        if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
            return Err(Fail::usage("the block size of SquashFS is a power of two from 4k to 1M"));
        }
        let mut options = SquashfsOptions {
            block_size_log2: u8::try_from(block_bytes.ilog2()).unwrap_or(u8::MAX),
            tails: match self.fragments {
                None => PackedTails::SmallFiles,
                Some(FragmentsArgument::None) => PackedTails::None,
                Some(FragmentsArgument::Tails) => PackedTails::All,
                Some(FragmentsArgument::All) => {
                    return Err(Fail::usage("--fragments all: SquashFS packs only ends of files: use tails"));
                }
            },
            ..SquashfsOptions::default()
        };
        match &self.compress {
            None => {}
            Some(text) if text == "none" => {
                options.uncompressed =
                    UncompressedParts { inodes: true, data: true, fragments: true, xattrs: true, ids: true };
            }
            Some(text) => options.compression = self.block_compression(text, block_bytes)?,
        }
        Ok(options)
    }

    /// Refuses options that only EROFS has.
    fn check_is_squashfs(&self) -> Result<(), Fail> {
        let only_erofs = [
            ("--compress-hints", self.compress_hints.is_some()),
            ("--pcluster", self.pcluster_bytes.is_some()),
            ("--lz4-window", self.lz4_window.is_some()),
            ("--inline-tails", self.inline_tails),
            ("--extended-inodes", self.extended_inodes),
            ("--chunk", self.chunk.is_some()),
            ("--label", self.label.is_some()),
        ];
        if let Some((option, _)) = only_erofs.iter().find(|(_, is_given)| *is_given) {
            return Err(Fail::usage(format!("{option} is an option of EROFS: SquashFS has nothing like it")));
        }
        if self.dedupe {
            return Err(Fail::usage(
                "--dedupe: SquashFS stores equal files once, without an option, but no equal parts",
            ));
        }
        Ok(())
    }

    fn block_compression(&self, text: &str, block_bytes: u64) -> Result<BlockCompression, Fail> {
        let (name, level) = text.split_once(',').unwrap_or((text, ""));
        let names = COMPRESSORS.map(|(name, _)| name);
        let Some((_, level_default)) = COMPRESSORS.iter().find(|(known, _)| *known == name) else {
            return Err(Fail::usage(format!("'{name}' is unknown: SquashFS has {}", listed(&names, "and"))));
        };
        let level = match (level, level_default) {
            ("", default) => default.unwrap_or(0),
            (_, None) => return Err(Fail::usage(format!("{name} has no levels: omit the level"))),
            (text, Some(_)) => {
                let wrong = |_| Fail::usage(format!("'{text}' is not a level: give a number, as in zstd,9"));
                text.strip_prefix("level=").unwrap_or(text).parse().map_err(wrong)?
            }
        };
        if self.dictionary.is_some() && name != "xz" {
            return Err(Fail::usage("--dictionary has no effect: of the compressors of SquashFS, only xz has one"));
        }
        let compression = match name {
            "gzip" => {
                // The encoder reports a level that is out of range.
                let level = u8::try_from(level).unwrap_or(u8::MAX);
                BlockCompression::Gzip { level, window_log2: GZIP_WINDOW_LOG2, strategies: 0 }
            }
            "xz" => {
                let dictionary = u32::try_from(self.dictionary.unwrap_or(block_bytes)).unwrap_or(u32::MAX);
                let dictionary_bytes =
                    if self.dictionary.is_some() { dictionary } else { dictionary.max(XZ_DICTIONARY_MIN) };
                BlockCompression::Xz { dictionary_bytes, filters: 0 }
            }
            "lzma" => BlockCompression::Lzma,
            "lzo" => BlockCompression::Lzo,
            "zstd" => BlockCompression::Zstd { level },
            _ => BlockCompression::Lz4 { is_high: name == "lz4hc" },
        };
        Ok(compression)
    }
}
