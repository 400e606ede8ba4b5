//! MicroLZMA streams.

use floe_image::{DecodeError, Padding};

use super::{lzma_sys::LzmaStream, request::Request, scratch::Scratch, stream};

/// The largest dictionary that EROFS allows, in bytes.
const DICTIONARY_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Decodes the requested part of a stream.
pub(crate) fn decode(
    lzma: &mut LzmaStream,
    padding: Padding,
    dictionary_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if dictionary_bytes > DICTIONARY_BYTES_MAX {
        return Err(DecodeError::Unsupported("MicroLZMA dictionary above 8 MiB".into()));
    }
    if request.may_be_short() {
        // The stream does not mark its own end.
        return Err(DecodeError::Unsupported("MicroLZMA stream of unknown decoded length".into()));
    }
    let is_exact = request.ends_with_block() && padding != Padding::Trailing;
    lzma.start_micro(
        request.stored.len(),
        request.end(),
        is_exact,
        dictionary_of(dictionary_bytes, request.len_max()),
    )?;
    stream::answer(lzma, request, scratch)
}

/// The dictionary size for a block of `decoded_len` bytes in an image that states `dictionary_bytes`. Matches never
/// reach back beyond the beginning of the block, so a short block needs less. Blocks of similar length get the same
/// size, so that memory is reused.
pub(crate) fn dictionary_of(dictionary_bytes: u32, decoded_len: usize) -> u32 {
    let needed = decoded_len.checked_next_power_of_two().and_then(|needed| u32::try_from(needed).ok());
    dictionary_bytes.min(needed.unwrap_or(u32::MAX))
}
