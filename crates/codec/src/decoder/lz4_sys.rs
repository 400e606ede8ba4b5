//! Functions of liblz4 that its crate does not declare.

use std::ffi::{c_char, c_int};

use floe_image::DecodeError;
use lz4_sys::LZ4_decompress_safe;

const MALFORMED: DecodeError = DecodeError::Corrupt("malformed LZ4 block");

unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        source: *const c_char,
        output: *mut c_char,
        source_len: c_int,
        target_len: c_int,
        output_len: c_int,
    ) -> c_int;
}

/// Decodes a whole block, consuming every byte of `stored`, and returns the decoded length.
///
/// # Errors
/// The block is malformed or does not fit into `output`.
pub(crate) fn decode_whole(stored: &[u8], output: &mut [u8]) -> Result<usize, DecodeError> {
    let (stored_len, output_len) = (c_len(stored.len())?, c_len(output.len())?);
    // SAFETY: both slices are valid for their lengths and do not overlap, because one is borrowed mutably.
    let len =
        unsafe { LZ4_decompress_safe(stored.as_ptr().cast(), output.as_mut_ptr().cast(), stored_len, output_len) };
    usize::try_from(len).map_err(|_| MALFORMED)
}

/// Decodes the beginning of a block, as much as `output` holds, and returns the length. The rest of `stored` may be
/// invalid.
///
/// # Errors
/// The block is malformed before `output` is full.
pub(crate) fn decode_prefix(stored: &[u8], output: &mut [u8]) -> Result<usize, DecodeError> {
    let (stored_len, output_len) = (c_len(stored.len())?, c_len(output.len())?);
    // liblz4 accepts a match distance of zero, which no encoder writes, and repeats the bytes at the output position.
    // They must not be earlier contents of the memory.
    output.fill(0);
    // SAFETY: as in `decode_whole`.
    let len = unsafe {
        LZ4_decompress_safe_partial(
            stored.as_ptr().cast(),
            output.as_mut_ptr().cast(),
            stored_len,
            output_len,
            output_len,
        )
    };
    usize::try_from(len).map_err(|_| MALFORMED)
}

/// Decodes the block that starts at `start` and ends with `buffer` into the first `decoded_len` bytes of `buffer`, and
/// returns the decoded length. `buffer` is longer than `decoded_len` by [`super::lz4::in_place_margin`].
///
/// # Errors
/// The block is malformed or longer; the contents of `buffer` are then unspecified.
pub(crate) fn decode_in_place(start: usize, decoded_len: usize, buffer: &mut [u8]) -> Result<usize, DecodeError> {
    assert!(start <= buffer.len() && decoded_len <= buffer.len());
    let (stored_len, output_len) = (c_len(buffer.len() - start)?, c_len(decoded_len)?);
    let output = buffer.as_mut_ptr();
    // SAFETY: both ranges lie in `buffer`, and liblz4 reads and writes only within them. liblz4 documents this overlap
    // as in-place decompression: with the margin, a valid block is never overwritten before it is read. An invalid
    // block may be, which changes its decoded bytes but not the ranges that liblz4 accesses.
    let len =
        unsafe { LZ4_decompress_safe(output.add(start).cast_const().cast(), output.cast(), stored_len, output_len) };
    usize::try_from(len).map_err(|_| MALFORMED)
}

fn c_len(len: usize) -> Result<c_int, DecodeError> {
    c_int::try_from(len).map_err(|_| DecodeError::Corrupt("LZ4 block too long"))
}
