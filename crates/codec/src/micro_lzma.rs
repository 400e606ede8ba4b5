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
    lzma.start_micro(request.stored.len(), request.end(), is_exact, dictionary_bytes)?;
    stream::answer(lzma, request, scratch)
}
