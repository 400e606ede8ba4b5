//! LZ4 blocks.

use floe_image::{DecodeError, Padding};

use crate::{
    lz4_sys,
    request::{HOLDS_LESS, Request},
    scratch::Scratch,
};

/// The farthest that an LZ4 match can reach back, rounded up, in bytes.
const WINDOW_BYTES_MAX: u32 = 64 * 1024;

/// Decodes what is asked for of one block.
pub(crate) fn decode(
    padding: Padding,
    window_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if window_bytes > WINDOW_BYTES_MAX {
        return Err(DecodeError::Unsupported("an LZ4 window above 64 KiB".into()));
    }
    if padding == Padding::Trailing && request.may_be_short() {
        return Err(DecodeError::Unsupported("an LZ4 block of unknown length with bytes behind it".into()));
    }
    if request.skip > 0 {
        let end = request.end();
        let skip = request.skip;
        let whole = scratch.take(end)?;
        let len = if request.ends_with_block() && padding != Padding::Trailing {
            lz4_sys::decode_whole(request.stored, whole)?
        } else {
            lz4_sys::decode_prefix(request.stored, whole)?
        };
        let decoded = whole[..len].get(skip..).unwrap_or_default();
        request.output[..decoded.len()].copy_from_slice(decoded);
        return request.answer(decoded.len());
    }
    let len = if request.is_whole() && padding != Padding::Trailing {
        lz4_sys::decode_whole(request.stored, request.output)?
    } else {
        lz4_sys::decode_prefix(request.stored, request.output)?
    };
    request.answer(len)
}

/// How many bytes longer than the decoded data a buffer must be, so that a block of `stored_len` bytes at its end can be
/// decoded over itself: a sound block grows by at most one byte in 255 while it is decoded, and liblz4 writes up to 32
/// bytes ahead.
pub(crate) const fn in_place_margin(stored_len: usize) -> usize {
    (stored_len >> 8) + 32
}

/// Decodes the block at the end of `buffer`, from `start` on, into the first `decoded_len` bytes of it.
pub(crate) fn decode_in_place(start: usize, decoded_len: usize, buffer: &mut [u8]) -> Result<(), DecodeError> {
    let len = lz4_sys::decode_in_place(start, decoded_len, buffer)?;
    if len == decoded_len { Ok(()) } else { Err(HOLDS_LESS) }
}
