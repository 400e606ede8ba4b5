//! Compression for writers of images: each encoder fills a given room with as much input as fits.

mod deflate;
mod lz4;
mod lz4_matches;
mod lz4_output;
mod lz4_sys;
mod lz4_window;
mod micro_lzma;
mod micro_lzma_sys;
mod trials;
mod zstd;
mod zstd_sys;

use std::{fmt, num::NonZeroU32};

pub use deflate::DeflateEncoder;
pub use lz4::{Lz4Encoder, Lz4HighEncoder};
pub use lz4_window::Lz4WindowEncoder;
pub use micro_lzma::MicroLzmaEncoder;
pub use zstd::ZstdEncoder;

/// What an encoder took and gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fit {
    /// How many bytes of the input's beginning are in the output.
    pub consumed: usize,
    /// How many bytes the output takes. 0 where nothing at all fits.
    pub produced: usize,
}

/// A compressor with working state that is reused from block to block, so each thread has its own.
///
/// The first byte of what it produces is never zero, because EROFS finds the beginning of right-aligned data by that.
/// The output depends on the options and on what was encoded since [`Encoder::restart`] alone.
pub trait Encoder: Send {
    /// Says that what follows is another input: nothing learnt of the one before may change its output.
    fn restart(&mut self) {}

    /// Encodes as much of the beginning of `input` as fits into `output`, without searching for the limit by trial.
    /// LZ4 and MicroLZMA leave no room that another byte would fit in; DEFLATE and zstd may leave a little.
    ///
    /// # Errors
    /// The codec could not get its working memory, or refused its parameters.
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError>;

    /// Encodes all of `input` into `output`; `None` where it does not fit.
    ///
    /// # Errors
    /// As [`Encoder::encode_to_fit`].
    fn encode_whole(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        let fit = self.encode_to_fit(input, output)?;
        Ok((fit.produced > 0 && fit.consumed == input.len()).then_some(fit.produced))
    }
}

/// A codec with its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// LZ4 by the fast method.
    Lz4 {
        /// The farthest a match reaches back, in bytes.
        window_bytes: NonZeroU32,
    },
    /// LZ4 by the thorough method.
    Lz4High {
        /// 1 to 12.
        level: u8,
        /// The farthest a match reaches back, in bytes.
        window_bytes: NonZeroU32,
    },
    /// MicroLZMA.
    MicroLzma {
        /// 0 to 9, or 100 to 109 for the extreme ones.
        level: u8,
        /// The dictionary in bytes, 4 KiB to 8 MiB.
        dictionary_bytes: u32,
    },
    /// Raw DEFLATE with a window of 32 KiB.
    Deflate {
        /// 1 to 12.
        level: u8,
    },
    /// Zstandard.
    Zstd {
        /// 1 to 22.
        level: u8,
        /// log2 of the window in bytes, 10 to 20.
        window_log2: u8,
    },
}

/// LZ4's own largest window, in bytes.
pub const LZ4_WINDOW_MAX: NonZeroU32 = NonZeroU32::new(65_535).unwrap();

/// The largest dictionary of MicroLZMA that is taken where none is asked for, in bytes. An encoder takes ten times as much
/// memory; one of 4 MiB makes what is in pclusters of 1 MiB smaller by 0.9 %.
pub const LZMA_DICTIONARY_USUAL_MAX: u32 = 5 << 19;

impl Compression {
    /// An encoder with these settings.
    ///
    /// # Errors
    /// A setting is out of its range, or there is no memory.
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

/// Why something could not be encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncodeError {
    /// A setting is out of its range: what may be given.
    Setting(&'static str),
    /// The codec could not get its working memory.
    NoMemory,
    /// The codec failed in a way that it should not.
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

#[cfg(test)]
mod tests;
