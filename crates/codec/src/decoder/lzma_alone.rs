//! .lzma ("LZMA alone") streams.

use floe_image::DecodeError;

use super::{lzma_sys::LzmaStream, request::Request, scratch::Scratch, stream};

/// The largest accepted dictionary in bytes. SquashFS uses the block size, at most 1 MiB.
pub(crate) const DICTIONARY_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Decodes the requested part of a stream.
pub(crate) fn decode(
    lzma: &mut LzmaStream,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    lzma.start_alone(DICTIONARY_BYTES_MAX)?;
    stream::answer(lzma, request, scratch)
}
