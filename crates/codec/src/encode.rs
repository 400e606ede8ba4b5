//! Compression for image writers: each encoder fills a given output with as much input as fits.

mod block;
mod deflate;
mod lz4;
mod lz4_output;
mod lz4_sys;
mod lz4_window;
mod lzma_block_sys;
mod micro_lzma;
mod micro_lzma_sys;
mod trials;
mod zstd;
mod zstd_sys;

#[cfg(test)]
mod tests;

pub use block::BlockCompression;
use deflate::DeflateEncoder;
use lz4::{Lz4Encoder, Lz4HighEncoder};
pub use lz4_window::Lz4WindowEncoder;
use micro_lzma::MicroLzmaEncoder;
use zstd::ZstdEncoder;

use std::{fmt, num::NonZeroU32, ops::RangeInclusive};

/// How much input was consumed and how much output produced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fit {
    /// How many bytes from the beginning of the input the output encodes.
    pub consumed: usize,
    /// The length of the output in bytes; 0 if nothing fits.
    pub produced: usize,
}

/// A compressor with working state that it reuses from block to block, so each thread has its own.
///
/// The first byte of the output is never zero, because EROFS finds the beginning of right-aligned data by skipping
/// zeros. The output depends only on the settings and on the input since [`Encoder::restart`].
pub trait Encoder: Send {
    /// Starts an unrelated input, whose output must not depend on earlier input.
    fn restart(&mut self) {}

    /// Encodes as much of the beginning of `input` as fits into `output`. With LZ4 and MicroLZMA, not one more input
    /// byte would fit; DEFLATE and zstd may leave a little space unused.
    ///
    /// # Errors
    /// The codec could not allocate its working memory, or refused its parameters.
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError>;

    /// Encodes all of `input` into `output`; `None` if it does not fit.
    ///
    /// # Errors
    /// As for [`Encoder::encode_to_fit`].
    fn encode_whole(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        let fit = self.encode_to_fit(input, output)?;
        Ok((fit.produced > 0 && fit.consumed == input.len()).then_some(fit.produced))
    }
}

/// Compresses blocks. It reuses its memory from block to block, so each thread has its own.
pub trait BlockEncoder: Send {
    /// Compresses `input` into `output`; `None` if it does not fit.
    ///
    /// # Errors
    /// Memory is short, or the codec failed.
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError>;
}

/// A codec with its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// LZ4, fast compression.
    Lz4 {
        /// The largest match distance in bytes.
        window_bytes: NonZeroU32,
    },
    /// LZ4 HC, high compression.
    Lz4High {
        /// Level 1 to 12.
        level: u8,
        /// The largest match distance in bytes.
        window_bytes: NonZeroU32,
    },
    /// MicroLZMA.
    MicroLzma {
        /// Level 0 to 9, or 100 to 109 for the extreme presets.
        level: u8,
        /// The dictionary size in bytes, 4 KiB to 8 MiB.
        dictionary_bytes: u32,
    },
    /// Raw DEFLATE with a window of 32 KiB.
    Deflate {
        /// Level 1 to 12.
        level: u8,
    },
    /// Zstandard.
    Zstd {
        /// Level 1 to 22.
        level: u8,
        /// log2 of the window size in bytes, 10 to 20.
        window_log2: u8,
    },
}

/// The largest window of the LZ4 format, in bytes.
pub const LZ4_WINDOW_MAX: NonZeroU32 = NonZeroU32::new(65_535).unwrap();

impl Compression {
    /// Creates an encoder with these settings.
    ///
    /// # Errors
    /// A setting is out of range, or memory is short.
    pub fn encoder(&self) -> Result<Box<dyn Encoder>, EncodeError> {
        Ok(match *self {
            Self::Lz4 { window_bytes } if window_bytes >= LZ4_WINDOW_MAX => Box::new(Lz4Encoder::new()),
            Self::Lz4 { window_bytes } => Box::new(Lz4WindowEncoder::fast(window_bytes)),
            Self::Lz4High { level, window_bytes } if window_bytes >= LZ4_WINDOW_MAX => {
                Box::new(Lz4HighEncoder::new(level)?)
            }
            Self::Lz4High { level, window_bytes } => Box::new(Lz4WindowEncoder::high(level, window_bytes)?),
            Self::MicroLzma { level, dictionary_bytes } => Box::new(MicroLzmaEncoder::new(level, dictionary_bytes)?),
            Self::Deflate { level } => Box::new(DeflateEncoder::new(level)?),
            Self::Zstd { level, window_log2 } => Box::new(ZstdEncoder::new(level, window_log2)?),
        })
    }
}

/// Why encoding failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncodeError {
    /// A setting is out of range; the text states the valid range.
    Setting(&'static str),
    /// The codec could not allocate its working memory.
    NoMemory,
    /// The codec reported an unexpected failure.
    Codec(&'static str),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(range) => formatter.write_str(range),
            Self::NoMemory => formatter.write_str("no memory for the encoder"),
            Self::Codec(what) => write!(formatter, "the encoder failed: {what}"),
        }
    }
}

impl std::error::Error for EncodeError {}

/// A compression that users choose by name, and the settings that it has.
#[derive(Debug)]
pub struct Compressor {
    /// Its name.
    pub name: &'static str,
    /// The valid levels; empty if it has none.
    pub levels: &'static [RangeInclusive<u8>],
    /// The level that is used without a choice.
    pub level_default: u8,
    /// The dictionary or window that is used without a choice; `None` if users cannot choose one.
    pub dictionary: Option<DictionaryDefault>,
    /// Whether users can choose the window of LZ4.
    pub has_lz4_window: bool,
    compression: fn(&Parameters) -> Compression,
}

/// The size of a dictionary: a multiple of the pcluster size, at least 32 KiB.
#[derive(Clone, Copy, Debug)]
pub struct DictionaryDefault {
    /// The size divided by that of pclusters.
    pub pclusters: u32,
    /// The largest size in bytes.
    pub bytes_max: u32,
}

/// What a user has chosen. Settings that a compressor does not have are ignored.
#[derive(Clone, Copy, Debug)]
pub struct CompressorSettings {
    /// The level, if any.
    pub level: Option<u8>,
    /// The size of the dictionary or window in bytes, if any.
    pub dictionary_bytes: Option<u32>,
    /// The largest match distance of LZ4 in bytes.
    pub lz4_window_bytes: NonZeroU32,
    /// The largest pcluster in bytes.
    pub pcluster_bytes: u32,
}

/// The settings with defaults in place of what was not chosen.
struct Parameters {
    level: u8,
    dictionary_bytes: u32,
    lz4_window_bytes: NonZeroU32,
}

/// The smallest default dictionary in bytes.
const DICTIONARY_DEFAULT_MIN: u32 = 32 << 10;

/// The largest default dictionary of MicroLZMA, in bytes. An encoder needs ten times this memory; 4 MiB would make
/// pclusters of 1 MiB only 0.9 % smaller.
const LZMA_DICTIONARY_DEFAULT_MAX: u32 = 5 << 19;

/// The compressors, in the order in which they are listed for users.
pub const COMPRESSORS: [Compressor; 5] = [
    Compressor {
        name: "lz4",
        levels: &[],
        level_default: 1,
        dictionary: None,
        has_lz4_window: true,
        compression: |parameters| Compression::Lz4 { window_bytes: parameters.lz4_window_bytes },
    },
    Compressor {
        name: "lz4hc",
        levels: &[1..=12],
        level_default: 9,
        dictionary: None,
        has_lz4_window: true,
        compression: |parameters| Compression::Lz4High {
            level: parameters.level,
            window_bytes: parameters.lz4_window_bytes,
        },
    },
    Compressor {
        name: "lzma",
        levels: &[0..=9, 100..=109],
        level_default: 6,
        dictionary: Some(DictionaryDefault { pclusters: 4, bytes_max: LZMA_DICTIONARY_DEFAULT_MAX }),
        has_lz4_window: false,
        compression: |parameters| Compression::MicroLzma {
            level: parameters.level,
            dictionary_bytes: parameters.dictionary_bytes,
        },
    },
    Compressor {
        name: "deflate",
        levels: &[1..=12],
        level_default: 1,
        dictionary: None,
        has_lz4_window: false,
        compression: |parameters| Compression::Deflate { level: parameters.level },
    },
    Compressor {
        name: "zstd",
        levels: &[1..=22],
        level_default: 3,
        dictionary: Some(DictionaryDefault { pclusters: 8, bytes_max: 1 << 20 }),
        has_lz4_window: false,
        compression: |parameters| Compression::Zstd {
            level: parameters.level,
            window_log2: u8::try_from(parameters.dictionary_bytes.max(1).ilog2()).unwrap_or(u8::MAX),
        },
    },
];

impl Compressor {
    /// The compressor with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        const { &COMPRESSORS }.iter().find(|compressor| compressor.name == name)
    }

    /// Whether the level is valid.
    pub fn has_level(&self, level: u8) -> bool {
        self.levels.iter().any(|levels| levels.contains(&level))
    }

    /// The compression with these settings. Settings that are out of range make [`Compression::encoder`] fail.
    pub fn compression(&self, settings: &CompressorSettings) -> Compression {
        let dictionary =
            self.dictionary.unwrap_or(DictionaryDefault { pclusters: 0, bytes_max: DICTIONARY_DEFAULT_MIN });
        let dictionary_default = settings.pcluster_bytes.saturating_mul(dictionary.pclusters);
        (self.compression)(&Parameters {
            level: settings.level.unwrap_or(self.level_default),
            dictionary_bytes: settings
                .dictionary_bytes
                .unwrap_or(dictionary_default.clamp(DICTIONARY_DEFAULT_MIN, dictionary.bytes_max)),
            lz4_window_bytes: settings.lz4_window_bytes.min(LZ4_WINDOW_MAX),
        })
    }
}
