//! LZ4 blocks.
//!
//! Two ways, and which is taken depends on what it costs. liblz4 decodes from the beginning of a block, straight into
//! the output where nothing is skipped, or into temporary memory where that is no more than the window. Beyond that the
//! decoder of `lz4_window` keeps only a window of what is skipped. Decoded megabytes a second on one core (AMD EPYC,
//! 4 KiB and 64 KiB stored, text and machine code; `examples/lz4_speed` measures again): liblz4 4,300 to 4,900, the
//! windowed one 1,700 to 2,500; `lz4_flex` beside them 3,100 to 3,900.
//!
//! Two things that no sound block has are not noticed where liblz4 decodes; the windowed decoder refuses both. A match
//! distance of zero gives zeros or bytes of the block, and not always the same, but never what memory held before. The
//! window that an image states is not checked: liblz4 has no such limit, and the bytes are right without it.

use floe_image::{DecodeError, Padding};

use crate::{
    lz4_sys,
    lz4_window::{PAST_WINDOW, Part},
    request::{ENDS_EARLY, HOLDS_LESS, Request},
    scratch::Scratch,
};

/// The farthest that an LZ4 match can reach back, rounded up, in bytes.
const WINDOW_BYTES_MAX: u32 = 64 * 1024;
const LARGEST_WINDOW: usize = WINDOW_BYTES_MAX as usize;

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
    let window_bytes = usize::try_from(window_bytes).unwrap_or(usize::MAX);
    let ends_with_block = request.ends_with_block() && padding != Padding::Trailing;
    let len = if request.skip == 0 {
        decode_beginning(request.stored, ends_with_block, request.may_be_short(), request.output)?
    } else if request.end() <= window_bytes {
        let beginning = scratch.take(request.end())?;
        let end = decode_beginning(request.stored, ends_with_block, request.may_be_short(), beginning)?;
        let part = beginning[..end].get(request.skip..).unwrap_or_default();
        request.output[..part.len()].copy_from_slice(part);
        part.len()
    } else {
        let mut decode_within = |window_bytes| {
            let part = Part { skip: request.skip, output: request.output, window_bytes, ends_with_block };
            let ring = scratch.take(part.ring_bytes())?;
            part.decode(request.stored, ring)
        };
        match decode_within(window_bytes) {
            // The image understates its window. What a block holds must not depend on how much of it is wanted.
            Err(PAST_WINDOW) => decode_within(LARGEST_WINDOW)?,
            len => len?,
        }
    };
    request.answer(len)
}

/// Decodes as much of a block as `output` holds, with what liblz4 offers.
fn decode_beginning(
    stored: &[u8],
    ends_with_block: bool,
    may_be_short: bool,
    output: &mut [u8],
) -> Result<usize, DecodeError> {
    if ends_with_block {
        return lz4_sys::decode_whole(stored, output);
    }
    let len = lz4_sys::decode_prefix(stored, output)?;
    if len < output.len() && may_be_short && lz4_sys::decode_whole(stored, output)? != len {
        // Decoding a prefix takes a block that is cut for one that ends.
        return Err(ENDS_EARLY);
    }
    Ok(len)
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
