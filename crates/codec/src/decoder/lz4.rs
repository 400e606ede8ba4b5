//! LZ4 blocks.
//!
//! There are two decoders. liblz4 decodes from the beginning of a block: straight into the output if nothing is
//! skipped, or into scratch memory if that takes no more than the window. Otherwise `lz4_window` decodes and keeps only
//! a window of the skipped bytes. Decoded megabytes per second on one core (AMD EPYC, 4 KiB and 64 KiB stored, text and
//! machine code, `examples/lz4_speed`): liblz4 4,300 to 4,900, `lz4_window` 1,700 to 2,500; for comparison `lz4_flex`
//! 3,100 to 3,900.
//!
//! liblz4 does not detect two faults that `lz4_window` refuses. The first fault is a match distance of zero. liblz4
//! decodes it to zeros or to bytes of the block, not always the same ones, but never to earlier contents of the memory.
//! The second fault is a match beyond the window that the image states. liblz4 has no such limit, and decodes the match
//! to the correct bytes.

use floe_image::{DecodeError, Padding};

use super::{
    lz4_sys,
    lz4_window::{PAST_WINDOW, Part},
    request::{ENDS_EARLY, HOLDS_LESS, Request, Scratch},
};

/// The largest match distance of LZ4, rounded up, in bytes.
const WINDOW_BYTES_MAX: u32 = 64 * 1024;
const LARGEST_WINDOW: usize = WINDOW_BYTES_MAX as usize;

/// Decodes the requested part of a block.
pub(crate) fn decode(
    padding: Padding,
    window_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if window_bytes > WINDOW_BYTES_MAX {
        return Err(DecodeError::Unsupported("LZ4 window above 64 KiB".into()));
    }
    if padding == Padding::Trailing && request.may_be_short() {
        return Err(DecodeError::Unsupported("LZ4 block of unknown decoded length with trailing padding".into()));
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
            // The image understates its window. The result must not depend on which part of a block is requested.
            Err(PAST_WINDOW) => decode_within(LARGEST_WINDOW)?,
            len => len?,
        }
    };
    request.answer(len)
}

/// Decodes the beginning of a block with liblz4, as much as `output` holds.
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
        // Prefix decoding would accept a truncated block as complete.
        return Err(ENDS_EARLY);
    }
    Ok(len)
}

/// How much longer than the decoded data a buffer must be for a block of `stored_len` bytes at its end to be decoded in
/// place. During decoding a valid block grows by at most one byte in 255, and liblz4 writes up to 32 bytes ahead.
pub(crate) const fn in_place_margin(stored_len: usize) -> usize {
    (stored_len >> 8) + 32
}

/// Decodes the block that starts at `start` and ends with `buffer` into the first `decoded_len` bytes of `buffer`.
pub(crate) fn decode_in_place(start: usize, decoded_len: usize, buffer: &mut [u8]) -> Result<(), DecodeError> {
    let len = lz4_sys::decode_in_place(start, decoded_len, buffer)?;
    if len == decoded_len { Ok(()) } else { Err(HOLDS_LESS) }
}
