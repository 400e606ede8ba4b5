//! Raw DEFLATE by libdeflate: the input that fits is estimated, and the estimate corrected.

use libdeflater::{CompressionLvl, Compressor};

use super::{EncodeError, Encoder, Fit, trials::fit_by_trials};

/// What the first estimate takes: this many times the room.
const FIRST_RATIO: usize = 3;

/// Raw DEFLATE by libdeflate.
pub struct DeflateEncoder {
    compressor: Compressor,
    trial: Vec<u8>,
}

impl DeflateEncoder {
    /// An encoder of this level, 1 to 12.
    ///
    /// # Errors
    /// There is no such level.
    pub fn new(level: u8) -> Result<Self, EncodeError> {
        let range = EncodeError::Setting("the level of deflate is 1 to 12");
        let level = CompressionLvl::new(i32::from(level)).ok().filter(|_| level > 0).ok_or(range)?;
        Ok(Self { compressor: Compressor::new(level), trial: Vec::new() })
    }
}

impl Encoder for DeflateEncoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if input.is_empty() {
            return Ok(Fit::default());
        }
        let Self { compressor, trial } = self;
        let expected_len = output.len() * FIRST_RATIO;
        let best = fit_by_trials(input, output, trial, expected_len, |input, trial| {
            compressor.deflate_compress(input, trial).ok().filter(|len| *len > 0)
        });
        if best.produced > 0 && output[0] == 0 {
            // A stored block that is not the last begins with three zero bits and five that are not used: one of the
            // latter marks where the data begins.
            output[0] = 1 << 3;
        }
        Ok(best)
    }

    fn encode_whole(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        let produced = self.compressor.deflate_compress(input, output).ok().filter(|len| *len > 0);
        if produced.is_some() && output[0] == 0 {
            output[0] = 1 << 3;
        }
        Ok(produced)
    }
}
