//! LZ4 by liblz4, with its whole window of 64 KiB.

use super::{EncodeError, Encoder, Fit, lz4_sys};

/// liblz4's fast method has a better table of positions, of the same size, for inputs of at most so many bytes.
const SHORT_INPUT_LEN: usize = 64 << 10;
/// A room of at most so many bytes is mostly filled by such an input.
const SHORT_ROOM: usize = 16 << 10;
/// In a room of at most so many bytes there is so little to search that looking at more candidates than level
/// [`SMALL_ROOM_LEVEL`] does (16) takes a sixth of the time for 0.2 % of the size.
const SMALL_ROOM: usize = 4 << 10;
const SMALL_ROOM_LEVEL: u8 = 5;
/// The levels from here on look for the cheapest way to write the input instead of counting candidates.
const OPTIMAL_LEVEL: u8 = 10;
/// A byte of output stands for at most so many of input.
const RATIO_MAX: usize = 255;

/// LZ4 by liblz4's fast method.
#[derive(Debug, Default)]
pub struct Lz4Encoder {}

impl Lz4Encoder {
    /// An encoder without state: liblz4's is small enough for the stack.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Encoder for Lz4Encoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        fast_fit(input, output)
    }
}

/// LZ4 by liblz4's thorough method ("HC").
///
/// What does not shrink at all by the fast method is not searched thoroughly: that is slowest just where it finds nothing.
pub struct Lz4HighEncoder {
    state: lz4_sys::HighState,
    level: u8,
    /// Whether the fast method is asked first: at the beginning of an input, and after what did not shrink.
    is_doubtful: bool,
}

impl Lz4HighEncoder {
    /// An encoder of this level, 1 to 12. Levels 8 and 9 look at 64 candidates for each match, where liblz4 looks at
    /// 128 and 256, which takes twice the time for 0.2 to 0.3 % of the size; in rooms of up to 4 KiB levels 5 to 9 look at
    /// 16. 10 to 12 are liblz4's.
    ///
    /// # Errors
    /// There is no such level.
    pub fn new(level: u8) -> Result<Self, EncodeError> {
        let level = match level {
            1..=7 | 10..=12 => level,
            8 | 9 => 7,
            _ => return Err(EncodeError::Setting("the level of lz4hc is 1 to 12")),
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
        // The positions of all of the input are used up.
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
        return Err(EncodeError::Codec("liblz4 took more than it was given"));
    }
    if consumed == 0 || produced == 0 {
        return Ok(Fit::default());
    }
    Ok(Fit { consumed, produced })
}
