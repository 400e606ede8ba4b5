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
pub struct Lz4HighEncoder {
    state: lz4_sys::HighState,
    level: u8,
}

impl Lz4HighEncoder {
    /// An encoder of this level, 1 to 12.
    ///
    /// # Errors
    /// There is no such level.
    pub fn new(level: u8) -> Result<Self, EncodeError> {
        if !(1..=12).contains(&level) {
            return Err(EncodeError::Setting("the level of lz4hc is 1 to 12"));
        }
        Ok(Self { state: lz4_sys::HighState::new(), level })
    }
}

impl Encoder for Lz4HighEncoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        fit_of(input, self.state.compress_to_fit(self.level, input, output))
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
