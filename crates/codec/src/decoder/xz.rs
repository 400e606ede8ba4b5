//! .xz streams.

use floe_image::DecodeError;

use super::{lzma_sys::LzmaStream, request::Request, scratch::Scratch, stream};

/// The largest accepted dictionary in bytes, whatever the image states.
const DICTIONARY_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Decodes the requested part of a stream.
pub(crate) fn decode(
    lzma: &mut LzmaStream,
    dictionary_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if dictionary_bytes > DICTIONARY_BYTES_MAX {
        return Err(DecodeError::Unsupported("xz dictionary above 8 MiB".into()));
    }
    lzma.start_xz(dictionary_bytes)?;
    stream::answer(lzma, request, scratch)
}
