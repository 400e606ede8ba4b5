//! LZ4 by liblz4, with the full window of 64 KiB.

use super::{EncodeError, Encoder, Fit, lz4_sys};

/// Up to this input length, liblz4's fast compression packs more positions into its table.
const SHORT_INPUT_LEN: usize = 64 << 10;
/// Outputs of up to this length are mostly filled by such a short input.
const SHORT_ROOM: usize = 16 << 10;
/// Outputs of up to this length have few candidates: examining more of them than level [`SMALL_ROOM_LEVEL`] does (16)
/// takes a sixth of the time and saves only 0.2 % in size.
const SMALL_ROOM: usize = 4 << 10;
const SMALL_ROOM_LEVEL: u8 = 5;
/// From this level on, liblz4 searches for the cheapest encoding instead of counting candidates.
const OPTIMAL_LEVEL: u8 = 10;
/// The largest compression ratio of the LZ4 format.
const RATIO_MAX: usize = 255;

/// LZ4 by liblz4's fast compression.
#[derive(Debug, Default)]
pub(crate) struct Lz4Encoder {}

impl Lz4Encoder {
    /// Creates an encoder without state: liblz4's fits on the stack.
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

impl Encoder for Lz4Encoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        fast_fit(input, output)
    }
}

/// LZ4 by liblz4's high compression (HC).
///
/// Input that fast compression cannot shrink is not searched thoroughly: the search is slowest where it finds nothing.
pub(crate) struct Lz4HighEncoder {
    state: lz4_sys::HighState,
    level: u8,
    /// Whether to try fast compression first: at the beginning of an input, and after input that did not shrink.
    is_doubtful: bool,
}

impl Lz4HighEncoder {
    /// Creates an encoder of this level, 1 to 12. Levels 8 and 9 examine 64 candidates for each match; liblz4 examines
    /// 128 and 256, which takes twice the time and saves 0.2 to 0.3 % in size. In outputs of up to 4 KiB, levels 5 to 9
    /// examine 16. Levels 10 to 12 are liblz4's.
    ///
    /// # Errors
    /// The level is out of range.
    pub(crate) fn new(level: u8) -> Result<Self, EncodeError> {
        let level = match level {
            1..=7 | 10..=12 => level,
            8 | 9 => 7,
            _ => return Err(EncodeError::Setting("lz4hc level must be 1 to 12")),
        };
        Ok(Self { state: lz4_sys::HighState::new()?, level, is_doubtful: true })
    }
}

impl Encoder for Lz4HighEncoder {
    fn restart(&mut self) {
        self.is_doubtful = true;
    }

    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if self.is_doubtful {
            let fast = fast_fit(input, output)?;
            if fast.produced > 0 && fast.consumed <= fast.produced {
                return Ok(fast);
            }
        }
        // liblz4 inserts the positions of all input into its tables, used or not.
        let input = &input[..input.len().min(output.len().saturating_mul(RATIO_MAX))];
        let is_small = output.len() <= SMALL_ROOM && self.level < OPTIMAL_LEVEL;
        let level = if is_small { self.level.min(SMALL_ROOM_LEVEL) } else { self.level };
        let fit = fit_of(input, self.state.compress_to_fit(level, input, output))?;
        self.is_doubtful = fit.consumed <= fit.produced;
        Ok(fit)
    }
}

fn fast_fit(input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
    if output.len() <= SHORT_ROOM
        && let Some(short) = input.get(..SHORT_INPUT_LEN)
    {
        let fit = fit_of(short, lz4_sys::compress_to_fit(short, output))?;
        if fit.consumed < short.len() {
            return Ok(fit);
        }
    }
    fit_of(input, lz4_sys::compress_to_fit(input, output))
}

fn fit_of(input: &[u8], (consumed, produced): (usize, usize)) -> Result<Fit, EncodeError> {
    if consumed > input.len() {
        return Err(EncodeError::Codec("liblz4 reported more input than it was given"));
    }
    if consumed == 0 || produced == 0 {
        return Ok(Fit::default());
    }
    Ok(Fit { consumed, produced })
}
