//! Uncompressed blocks.

use floe_image::DecodeError;

use super::request::{HOLDS_MORE, Request};

/// Copies the requested bytes.
pub(crate) fn decode(request: &mut Request<'_>) -> Result<usize, DecodeError> {
    if request.ends_with_block() && request.stored.len() > request.len_max() {
        return Err(HOLDS_MORE);
    }
    let rest = request.stored.get(request.skip..).unwrap_or_default();
    let len = rest.len().min(request.output.len());
    request.output[..len].copy_from_slice(&rest[..len]);
    request.answer(len)
}
