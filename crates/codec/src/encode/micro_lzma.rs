//! MicroLZMA by liblzma, which fills a given output itself.

use super::{EncodeError, Encoder, Fit, micro_lzma_sys::Stream};

/// The shortest output that liblzma accepts, in bytes.
const OUTPUT_LEN_MIN: usize = 6;

/// MicroLZMA by liblzma.
pub(crate) struct MicroLzmaEncoder {
    stream: Stream,
}

impl MicroLzmaEncoder {
    /// Creates an encoder of this level (0 to 9, or 100 to 109 for the extreme presets) and dictionary size (4 KiB to 8
    /// MiB).
    ///
    /// # Errors
    /// The level or the dictionary size is out of range.
    pub(crate) fn new(level: u8, dictionary_bytes: u32) -> Result<Self, EncodeError> {
        if !(4096..=8 << 20).contains(&dictionary_bytes) {
            return Err(EncodeError::Setting("lzma dictionary must be 4096 to 8388608 bytes"));
        }
        let (level, extreme) = if level >= 100 { (level - 100, true) } else { (level, false) };
        Ok(Self { stream: Stream::new(level, extreme, dictionary_bytes)? })
    }
}

impl Encoder for MicroLzmaEncoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if output.len() < OUTPUT_LEN_MIN || input.is_empty() {
            return Ok(Fit::default());
        }
        let (consumed, produced) = self.stream.compress_to_fit(input, output)?;
        Ok(if consumed == 0 { Fit::default() } else { Fit { consumed, produced } })
    }
}
