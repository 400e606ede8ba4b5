//! LZO1X blocks.

use floe_image::DecodeError;
use lzokay::{Error, decompress::decompress};

use super::request::{ENDS_EARLY, HOLDS_MORE, Request, Scratch};

/// The longest block that is decoded whole for a part of it, in bytes: SquashFS's largest.
const DECODED_BYTES_MAX: usize = 1024 * 1024;

const MALFORMED: DecodeError = DecodeError::Corrupt("malformed LZO block");

/// Decodes the requested part of a block.
pub(crate) fn decode(request: &mut Request<'_>, scratch: &mut Scratch) -> Result<usize, DecodeError> {
    if request.is_whole() {
        let len = decompress(request.stored, request.output).map_err(decode_error)?;
        return request.answer(len);
    }
    // The codec can neither stop early nor decode in pieces, so a part costs as much as the whole block.
    let len_max = if request.may_be_longer() { DECODED_BYTES_MAX } else { request.len_max().min(DECODED_BYTES_MAX) };
    let whole = scratch.take(len_max)?;
    let len = decompress(request.stored, whole).map_err(decode_error)?;
    let decoded = whole[..len].get(request.skip..).unwrap_or_default();
    let len = decoded.len().min(request.output.len());
    request.output[..len].copy_from_slice(&decoded[..len]);
    request.answer(len)
}

fn decode_error(error: Error) -> DecodeError {
    match error {
        Error::InputOverrun => ENDS_EARLY,
        Error::OutputOverrun => HOLDS_MORE,
        _ => MALFORMED,
    }
}
