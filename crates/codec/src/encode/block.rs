//! Compression of whole blocks: each block of an image is compressed by itself, and stored uncompressed if that is shorter.

use libdeflater::{CompressionLvl, Compressor};
use lzokay::compress::{Dict, compress_no_alloc, compress_worst_size};
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Method, Status, Strategy};
use zstd_safe::{CCtx, CParameter};

use super::{BlockEncoder, EncodeError, Encoder, Lz4Encoder, Lz4HighEncoder, lzma_block_sys::LzmaBlocks};

/// The level of liblz4's high compression.
const LZ4_HIGH_LEVEL: u8 = 12;
/// log2 of the largest window of DEFLATE.
const WINDOW_LOG2_MAX: u8 = 15;
/// zlib's default amount of memory for matches.
const ZLIB_MEMORY_LEVEL: i32 = 8;
/// The smallest dictionary of xz, in bytes.
const XZ_DICTIONARY_MIN: u32 = 8 << 10;

/// The strategies of zlib, by their bit in [`BlockCompression::Gzip`].
const ZLIB_STRATEGIES: [Strategy; 5] =
    [Strategy::Default, Strategy::Filtered, Strategy::HuffmanOnly, Strategy::Rle, Strategy::Fixed];

/// A codec for whole blocks, with its settings: those of SquashFS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockCompression {
    /// zlib streams.
    Gzip {
        /// Level 1 to 9.
        level: u8,
        /// log2 of the window size in bytes, 8 to 15.
        window_log2: u8,
        /// The strategies of which the best is used, a bit for each: default, filtered, Huffman only, run-length encoded,
        /// fixed. 0 is the default strategy.
        strategies: u16,
    },
    /// .lzma streams.
    Lzma,
    /// LZO1X.
    Lzo,
    /// .xz streams.
    Xz {
        /// The dictionary size in bytes.
        dictionary_bytes: u32,
        /// The branch filters that are tried besides none, a bit for each: x86, PowerPC, IA-64, ARM, ARM-Thumb, SPARC, ARM64,
        /// RISC-V.
        filters: u32,
    },
    /// LZ4 blocks.
    Lz4 {
        /// Whether high compression is used.
        is_high: bool,
    },
    /// Zstandard frames.
    Zstd {
        /// Level 1 to 22, or below 0 for the fast levels.
        level: i32,
    },
}

impl BlockCompression {
    /// Creates an encoder with these settings.
    ///
    /// # Errors
    /// A setting is out of range, or memory is short.
    pub fn encoder(&self) -> Result<Box<dyn BlockEncoder>, EncodeError> {
        Ok(match *self {
            Self::Gzip { level, window_log2: WINDOW_LOG2_MAX, strategies: 0 | 1 } => {
                Box::new(LibdeflateBlocks::new(level)?)
            }
            Self::Gzip { level, window_log2, strategies } => Box::new(ZlibBlocks::new(level, window_log2, strategies)?),
            Self::Lzma => Box::new(LzmaBlocks::alone()?),
            Self::Lzo => Box::new(LzoBlocks { dictionary: Dict::new(), trial: Vec::new() }),
            Self::Xz { dictionary_bytes, filters } => {
                if dictionary_bytes < XZ_DICTIONARY_MIN || !is_xz_dictionary(dictionary_bytes) {
                    return Err(EncodeError::Setting(
                        "xz dictionary must be 2^n or 2^n + 2^(n+1), at least 8192 bytes",
                    ));
                }
                Box::new(LzmaBlocks::xz(dictionary_bytes, filters)?)
            }
            Self::Lz4 { is_high: false } => Box::new(FittingBlocks(Lz4Encoder::new())),
            Self::Lz4 { is_high: true } => Box::new(FittingBlocks(Lz4HighEncoder::new(LZ4_HIGH_LEVEL)?)),
            Self::Zstd { level } => Box::new(ZstdBlocks::new(level)?),
        })
    }
}

/// Whether an xz stream can state this dictionary size, and the kernel accepts it.
fn is_xz_dictionary(bytes: u32) -> bool {
    let lowest = bytes & bytes.wrapping_neg();
    bytes == lowest || bytes == lowest | lowest.wrapping_shl(1)
}

/// An encoder that fills an output; here, the output has to hold all input.
struct FittingBlocks<E>(E);

impl<E: Encoder> BlockEncoder for FittingBlocks<E> {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        self.0.restart();
        self.0.encode_whole(input, output)
    }
}

/// zlib streams by libdeflate, which has one strategy and the largest window.
struct LibdeflateBlocks {
    compressor: Compressor,
}

impl LibdeflateBlocks {
    fn new(level: u8) -> Result<Self, EncodeError> {
        let level = CompressionLvl::new(i32::from(checked_gzip_level(level)?));
        let level = level.map_err(|_| EncodeError::Codec("libdeflate refused a level"))?;
        Ok(Self { compressor: Compressor::new(level) })
    }
}

impl BlockEncoder for LibdeflateBlocks {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        Ok(self.compressor.zlib_compress(input, output).ok().filter(|len| *len > 0))
    }
}

/// zlib streams by zlib-rs, with each of several strategies.
struct ZlibBlocks {
    streams: Vec<Deflate>,
    trial: Vec<u8>,
}

impl ZlibBlocks {
    fn new(level: u8, window_log2: u8, strategies: u16) -> Result<Self, EncodeError> {
        let level = i32::from(checked_gzip_level(level)?);
        if !(8..=WINDOW_LOG2_MAX).contains(&window_log2) {
            return Err(EncodeError::Setting("the gzip window must be 8 to 15"));
        }
        let strategies = if strategies == 0 { 1 } else { strategies };
        if usize::try_from(strategies.ilog2()).unwrap_or(usize::MAX) >= ZLIB_STRATEGIES.len() {
            return Err(EncodeError::Setting("gzip has five strategies"));
        }
        let chosen = ZLIB_STRATEGIES.iter().enumerate().filter(|(bit, _)| strategies >> bit & 1 != 0);
        let stream = |strategy: &Strategy| {
            Deflate::new_with_config(DeflateConfig {
                level,
                method: Method::Deflated,
                window_bits: i32::from(window_log2),
                mem_level: ZLIB_MEMORY_LEVEL,
                strategy: *strategy,
            })
        };
        Ok(Self { streams: chosen.map(|(_, strategy)| stream(strategy)).collect(), trial: Vec::new() })
    }
}

impl BlockEncoder for ZlibBlocks {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        let mut best = None;
        self.trial.resize(output.len(), 0);
        for stream in &mut self.streams {
            stream.reset();
            let status = stream.compress(input, &mut self.trial, DeflateFlush::Finish);
            let status = status.map_err(|_| EncodeError::Codec("zlib failed"))?;
            let len = usize::try_from(stream.total_out()).unwrap_or(usize::MAX);
            if status == Status::StreamEnd && best.is_none_or(|best| len < best) {
                output[..len].copy_from_slice(&self.trial[..len]);
                best = Some(len);
            }
        }
        Ok(best)
    }
}

fn checked_gzip_level(level: u8) -> Result<u8, EncodeError> {
    if (1..=9).contains(&level) { Ok(level) } else { Err(EncodeError::Setting("gzip level must be 1 to 9")) }
}

struct LzoBlocks {
    dictionary: Box<Dict>,
    trial: Vec<u8>,
}

impl BlockEncoder for LzoBlocks {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        // The encoder needs room for the worst case.
        self.trial.resize(compress_worst_size(input.len()), 0);
        let len = compress_no_alloc(input, &mut self.trial, &mut self.dictionary);
        let len = len.map_err(|_| EncodeError::Codec("lzo failed"))?;
        let Some(room) = output.get_mut(..len) else { return Ok(None) };
        room.copy_from_slice(&self.trial[..len]);
        Ok(Some(len))
    }
}

struct ZstdBlocks {
    context: CCtx<'static>,
}

impl ZstdBlocks {
    fn new(level: i32) -> Result<Self, EncodeError> {
        if level == 0 || !(-131_072..=22).contains(&level) {
            return Err(EncodeError::Setting("zstd level must be 1 to 22, or -131072 to -1"));
        }
        let mut context = CCtx::try_create().ok_or(EncodeError::NoMemory)?;
        let set = context.set_parameter(CParameter::CompressionLevel(level));
        set.map_err(|_| EncodeError::Codec("zstd refused a level"))?;
        Ok(Self { context })
    }
}

impl BlockEncoder for ZstdBlocks {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        Ok(self.context.compress2(output, input).ok())
    }
}
