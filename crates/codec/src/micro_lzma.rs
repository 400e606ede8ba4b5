//! MicroLZMA streams.

use floe_image::{DecodeError, Padding};

use crate::{lzma_sys::LzmaStream, request::Request, scratch::Scratch, stream};

/// The largest dictionary that EROFS allows, in bytes.
const DICTIONARY_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Decodes what is asked for of one stream.
pub(crate) fn decode(
    lzma: &mut LzmaStream,
    padding: Padding,
    dictionary_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if dictionary_bytes > DICTIONARY_BYTES_MAX {
        return Err(DecodeError::Unsupported("a MicroLZMA dictionary above 8 MiB".into()));
    }
    if request.may_be_short() {
        // Nothing in the stream says where it ends.
        return Err(DecodeError::Unsupported("a MicroLZMA stream of unknown length".into()));
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

/// The dictionary that decodes a block of so many bytes where an image has this one. None of its matches reaches back
/// further than to its beginning. Blocks of about the same length get the same, so that its memory stays.
pub(crate) fn dictionary_of(dictionary_bytes: u32, decoded_len: usize) -> u32 {
    let needed = decoded_len.checked_next_power_of_two().and_then(|needed| u32::try_from(needed).ok());
    dictionary_bytes.min(needed.unwrap_or(u32::MAX))
}
