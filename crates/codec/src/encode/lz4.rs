//! LZ4 by liblz4, with its whole window of 64 KiB.

use super::{EncodeError, Encoder, Fit, lz4_sys};

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
        fit_of(input, lz4_sys::compress_to_fit(input, output))
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
    /// 128 and 256, which takes twice the time for 0.2 to 0.3 % of the size; 10 to 12 are liblz4's.
    ///
    /// # Errors
    /// There is no such level.
    pub fn new(level: u8) -> Result<Self, EncodeError> {
        let level = match level {
            1..=7 | 10..=12 => level,
            8 | 9 => 7,
            _ => return Err(EncodeError::Setting("the level of lz4hc is 1 to 12")),
        };
        Ok(Self { state: lz4_sys::HighState::new(), level, is_doubtful: true })
    }
}

impl Encoder for Lz4HighEncoder {
    fn restart(&mut self) {
        self.is_doubtful = true;
    }

    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if self.is_doubtful {
            let fast = fit_of(input, lz4_sys::compress_to_fit(input, output))?;
            if fast.produced > 0 && fast.consumed <= fast.produced {
                return Ok(fast);
            }
        }
        let fit = fit_of(input, self.state.compress_to_fit(self.level, input, output))?;
        self.is_doubtful = fit.consumed <= fit.produced;
        Ok(fit)
    }
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
