//! Raw DEFLATE by libdeflate: estimates how much input fits, from the last block, and corrects the estimate.

use libdeflater::{CompressionLvl, Compressor};

use super::{
    EncodeError, Encoder, Fit,
    trials::{fit_by_trials, scaled},
};

/// The first estimate of the compression ratio, before any block is encoded.
const FIRST_RATIO: usize = 3;

/// A shorter output shows no ratio, in bytes.
const RATIO_BYTES_MIN: usize = 64;

/// Raw DEFLATE by libdeflate.
pub(crate) struct DeflateEncoder {
    compressor: Compressor,
    trial: Vec<u8>,
    /// The compression ratio of the last block of this input, as input and output bytes.
    ratio: (usize, usize),
}

impl DeflateEncoder {
    /// Creates an encoder of this level, 1 to 12.
    ///
    /// # Errors
    /// The level is out of range.
    pub(crate) fn new(level: u8) -> Result<Self, EncodeError> {
        let range = EncodeError::Setting("deflate level must be 1 to 12");
        let level = CompressionLvl::new(i32::from(level)).ok().filter(|_| level > 0).ok_or(range)?;
        Ok(Self { compressor: Compressor::new(level), trial: Vec::new(), ratio: (FIRST_RATIO, 1) })
    }
}

impl Encoder for DeflateEncoder {
    fn restart(&mut self) {
        self.ratio = (FIRST_RATIO, 1);
    }

    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if input.is_empty() {
            return Ok(Fit::default());
        }
        let Self { compressor, trial, ratio } = self;
        let expected_len = scaled(output.len(), ratio.0, ratio.1);
        let best = fit_by_trials(input, output, trial, expected_len, |input, trial| {
            compressor.deflate_compress(input, trial).ok().filter(|len| *len > 0)
        });
        if best.produced > RATIO_BYTES_MIN {
            *ratio = (best.consumed, best.produced);
        }
        if best.produced > 0 && output[0] == 0 {
            // A stored block that is not the last one begins with three zero bits and five unused bits. One unused bit
            // is set so that the first byte is not zero.
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
