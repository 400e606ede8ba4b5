//! The compressor of an image and its options.

use std::fmt;

use floe_image::{Encoding, Error, Padding, Place, Result};

use crate::format::{GzipOptions, Lz4Options, LzoOptions, METADATA_BYTES, SUPERBLOCK_BYTES, XzOptions, ZstdOptions};

/// The largest match distance of an LZ4 block.
const LZ4_WINDOW_BYTES: u32 = 1 << 16;

/// The only known version of LZ4 options.
const LZ4_VERSION_RAW: u32 = 1;

/// LZ4 option flag: a level or an acceleration follows.
const LZ4_FLAG_LEVEL: u32 = 2;

/// The compressor of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compression {
    /// zlib streams.
    Gzip,
    /// The legacy .lzma format.
    Lzma,
    /// LZO1X.
    Lzo,
    /// .xz streams.
    Xz,
    /// Raw LZ4 blocks.
    Lz4,
    /// Zstandard frames.
    Zstd,
}

impl Compression {
    /// The compressor with this id in the superblock.
    pub(crate) const fn from_id(id: u16) -> Option<Self> {
        Some(match id {
            1 => Self::Gzip,
            2 => Self::Lzma,
            3 => Self::Lzo,
            4 => Self::Xz,
            5 => Self::Lz4,
            6 => Self::Zstd,
            _ => return None,
        })
    }

    /// The name that mksquashfs uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Lzma => "lzma",
            Self::Lzo => "lzo",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The encoding of blocks that decode to at most `block_size` bytes.
    pub fn encoding(self, block_size: u32) -> Encoding {
        let largest = block_size.max(METADATA_BYTES);
        match self {
            Self::Gzip => Encoding::Zlib,
            Self::Lzma => Encoding::LzmaAlone,
            Self::Lzo => Encoding::Lzo,
            Self::Lz4 => Encoding::Lz4 { padding: Padding::None, window_bytes: LZ4_WINDOW_BYTES },
            // Neither the options nor the streams limit it: no match exceeds a block, so no larger dictionary is used.
            Self::Xz => Encoding::Xz { dictionary_bytes: largest },
            Self::Zstd => {
                let window_log2_max = u8::try_from(largest.ilog2()).unwrap_or(u8::MAX);
                Encoding::Zstd { padding: Padding::None, window_log2_max }
            }
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The compressor's options; only those of lz4 affect decoding (section "Compressor options").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompressorOptions {
    /// The options of gzip.
    Gzip {
        /// 1 to 9.
        level: u32,
        /// log2 of the window size.
        window_log2: u16,
        /// The strategies tried during compression, a bit for each.
        strategies: u16,
    },
    /// The options of lzo.
    Lzo {
        /// 0 to 4.
        algorithm: u32,
        /// 1 to 9.
        level: u32,
    },
    /// The options of xz.
    Xz {
        /// The dictionary size in bytes.
        dictionary_bytes: u32,
        /// The branch filters tried during compression, a bit for each.
        filters: u32,
    },
    /// The options of lz4.
    Lz4 {
        /// Whether high compression was used.
        high_compression: bool,
        /// Its level, or the acceleration of fast compression.
        level: Option<u32>,
    },
    /// The options of zstd.
    Zstd {
        /// The level; negative for the fast levels.
        level: i32,
    },
    /// The compressor has no options.
    None,
}

impl CompressorOptions {
    /// Parses the decoded block that follows the superblock.
    pub(crate) fn parse(compression: Compression, bytes: &[u8]) -> Result<Self> {
        let place = Place::at(SUPERBLOCK_BYTES);
        let too_short = Error::corrupt("compressor options are too short", place);
        Ok(match compression {
            Compression::Gzip => {
                let raw = GzipOptions::from_prefix(bytes).ok_or(too_short)?;
                Self::Gzip { level: raw.compression_level, window_log2: raw.window_size, strategies: raw.strategies }
            }
            Compression::Lzo => {
                let raw = LzoOptions::from_prefix(bytes).ok_or(too_short)?;
                Self::Lzo { algorithm: raw.algorithm, level: raw.compression_level }
            }
            Compression::Xz => {
                let raw = XzOptions::from_prefix(bytes).ok_or(too_short)?;
                if !is_xz_dictionary(raw.dictionary_size) {
                    return Err(Error::corrupt("xz dictionary is neither 2^n nor 2^n + 2^(n+1) bytes", place));
                }
                Self::Xz { dictionary_bytes: raw.dictionary_size, filters: raw.flags }
            }
            Compression::Lz4 => {
                let raw = Lz4Options::from_prefix(bytes).ok_or(too_short)?;
                if raw.version != LZ4_VERSION_RAW {
                    return Err(Error::unsupported(format!("SquashFS lz4 of version {}", raw.version)));
                }
                let level = bytes.get(Lz4Options::SIZE..).and_then(|rest| rest.first_chunk());
                let level = level.map(|bytes| u32::from_le_bytes(*bytes)).filter(|_| raw.flags & LZ4_FLAG_LEVEL != 0);
                Self::Lz4 { high_compression: raw.flags & 1 != 0, level }
            }
            Compression::Zstd => {
                Self::Zstd { level: ZstdOptions::from_prefix(bytes).ok_or(too_short)?.compression_level }
            }
            Compression::Lzma => Self::None,
        })
    }
}

/// Whether the kernel accepts this dictionary size.
fn is_xz_dictionary(bytes: u32) -> bool {
    let lowest = bytes & bytes.wrapping_neg();
    bytes != 0 && (bytes == lowest || bytes == lowest | lowest.wrapping_shl(1))
}

impl fmt::Display for CompressorOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gzip { level, window_log2, strategies } => {
                write!(formatter, "level {level}, window 2^{window_log2}")?;
                let names = ["default", "filtered", "huffman_only", "run_length_encoded", "fixed"];
                write_bits(formatter, ", strategies", u32::from(*strategies), &names)
            }
            Self::Lzo { algorithm, level } => {
                let names = ["lzo1x_1", "lzo1x_1_11", "lzo1x_1_12", "lzo1x_1_15", "lzo1x_999"];
                let name = usize::try_from(*algorithm).ok().and_then(|index| names.get(index));
                match name {
                    Some(&"lzo1x_999") => write!(formatter, "lzo1x_999, level {level}"),
                    Some(name) => formatter.write_str(name),
                    None => write!(formatter, "unknown algorithm {algorithm}"),
                }
            }
            Self::Xz { dictionary_bytes, filters } => {
                write!(formatter, "dictionary {dictionary_bytes} bytes")?;
                let names = ["x86", "powerpc", "ia64", "arm", "armthumb", "sparc", "arm64", "riscv"];
                write_bits(formatter, ", filters", *filters, &names)
            }
            Self::Lz4 { high_compression, level } => {
                formatter.write_str(if *high_compression { "high compression" } else { "fast" })?;
                match (level, high_compression) {
                    (Some(level), true) => write!(formatter, ", level {level}"),
                    (Some(level), false) => write!(formatter, ", acceleration {level}"),
                    (None, _) => Ok(()),
                }
            }
            Self::Zstd { level } => write!(formatter, "level {level}"),
            Self::None => formatter.write_str("none"),
        }
    }
}

fn write_bits(formatter: &mut fmt::Formatter<'_>, title: &str, bits: u32, names: &[&str]) -> fmt::Result {
    let mut separator = title;
    for (name, bit) in names.iter().zip(0_u32..) {
        if bits.checked_shr(bit).is_some_and(|rest| rest & 1 != 0) {
            write!(formatter, "{separator} {name}")?;
            separator = "";
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_formatted() {
        let rows: [(Compression, &[u8], &str); 12] = [
            (Compression::Gzip, &[9, 0, 0, 0, 15, 0, 5, 0], "level 9, window 2^15, strategies default huffman_only"),
            (Compression::Lzo, &[4, 0, 0, 0, 7, 0, 0, 0], "lzo1x_999, level 7"),
            (Compression::Lzo, &[1, 0, 0, 0, 7, 0, 0, 0], "lzo1x_1_11"),
            (Compression::Xz, &[0, 0, 4, 0, 9, 0, 0, 0], "dictionary 262144 bytes, filters x86 arm"),
            (Compression::Xz, &[0, 0, 0, 4, 0, 0, 0, 0], "dictionary 67108864 bytes"),
            (Compression::Lz4, &[1, 0, 0, 0, 1, 0, 0, 0], "high compression"),
            (Compression::Lz4, &[1, 0, 0, 0, 2, 0, 0, 0, 17, 0, 0, 0], "fast, acceleration 17"),
            (Compression::Zstd, &[0xfb, 0xff, 0xff, 0xff], "level -5"),
            (Compression::Lzma, &[], "none"),
            (Compression::Zstd, &[1, 2, 3], "corrupt image: compressor options are too short (byte 96)"),
            (Compression::Lz4, &[2, 0, 0, 0, 0, 0, 0, 0], "not supported: SquashFS lz4 of version 2"),
            (Compression::Xz, &[5, 0, 0, 0, 0, 0, 0, 0], "corrupt image: xz dictionary is neither 2^n nor"),
        ];
        for (compression, bytes, expected) in rows {
            let told = match CompressorOptions::parse(compression, bytes) {
                Ok(options) => options.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(told.starts_with(expected), "{told} where {expected} is expected");
        }
    }

    #[test]
    fn xz_dictionary_sizes_are_those_of_the_kernel() {
        for (bytes, expected) in
            [(0, false), (1, true), (3, true), (5, false), (8192, true), (98_304, true), (7, false)]
        {
            assert_eq!(is_xz_dictionary(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn the_memory_of_decoding_is_bounded_by_the_block_size() {
        for (compression, block_size, expected) in [
            (Compression::Xz, 4096, Encoding::Xz { dictionary_bytes: 8192 }),
            (Compression::Xz, 1 << 20, Encoding::Xz { dictionary_bytes: 1 << 20 }),
            (Compression::Zstd, 4096, Encoding::Zstd { padding: Padding::None, window_log2_max: 13 }),
            (Compression::Zstd, 1 << 17, Encoding::Zstd { padding: Padding::None, window_log2_max: 17 }),
        ] {
            assert_eq!(compression.encoding(block_size), expected);
        }
    }
}
