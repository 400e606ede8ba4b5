//! Raw DEFLATE by libdeflate: the input that fits is estimated, and the estimate corrected.

use libdeflater::{CompressionLvl, Compressor};

use super::{EncodeError, Encoder, Fit};

/// How much of the room may stay empty before a correction is worth a second run: one part in this many.
const SLACK_PARTS: usize = 64;
/// How many corrections follow the estimate at most.
const CORRECTIONS_MAX: usize = 3;
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

    /// Compresses all of `input` into the buffer for trials; `None` where it takes more than that has room for.
    fn try_whole(&mut self, input: &[u8]) -> Option<usize> {
        self.compressor.deflate_compress(input, &mut self.trial).ok().filter(|len| *len > 0)
    }
}

impl Encoder for DeflateEncoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        let room = output.len();
        // What goes a little beyond the room tells better how much less to take than a mere failure.
        self.trial.resize(room + room / 4 + 64, 0);
        let mut best = Fit::default();
        let (mut fits, mut exceeds) = (0, input.len().saturating_add(1));
        let mut attempt = input.len().min(room * FIRST_RATIO);
        for _ in 0..=CORRECTIONS_MAX {
            let produced = self.try_whole(&input[..attempt]);
            let ratio_len = match produced {
                Some(produced) if produced <= room => {
                    if attempt > best.consumed {
                        output[..produced].copy_from_slice(&self.trial[..produced]);
                        best = Fit { consumed: attempt, produced };
                    }
                    fits = attempt;
                    if attempt == input.len() || room - produced <= room / SLACK_PARTS {
                        break;
                    }
                    // A little less than the ratio promises, so that the second estimate fits.
                    (attempt * room / produced) * 127 / 128
                }
                Some(produced) => {
                    exceeds = attempt;
                    (attempt * room / produced) * 127 / 128
                }
                None => {
                    exceeds = attempt;
                    attempt * 2 / 3
                }
            };
            attempt = ratio_len.clamp(fits + 1, (exceeds - 1).max(fits + 1)).min(input.len());
            if attempt <= fits || attempt >= exceeds {
                break;
            }
        }
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
