//! The functions of liblz4 that its crate does not declare.

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

/// Decodes a whole block, every byte of `stored`, and gives its decoded length.
///
/// # Errors
/// The block is malformed or does not fit into `output`.
pub(crate) fn decode_whole(stored: &[u8], output: &mut [u8]) -> Result<usize, DecodeError> {
    let (stored_len, output_len) = (c_len(stored.len())?, c_len(output.len())?);
    // SAFETY: both runs are valid for their lengths and, being one borrowed and one mutably borrowed, do not overlap.
    let len =
        unsafe { LZ4_decompress_safe(stored.as_ptr().cast(), output.as_mut_ptr().cast(), stored_len, output_len) };
    usize::try_from(len).map_err(|_| MALFORMED)
}

/// Decodes the beginning of a block, as much as `output` holds, and gives how much that was. What follows in `stored`
/// need not be sound.
///
/// # Errors
/// The block is malformed before `output` is full.
pub(crate) fn decode_prefix(stored: &[u8], output: &mut [u8]) -> Result<usize, DecodeError> {
    let (stored_len, output_len) = (c_len(stored.len())?, c_len(output.len())?);
    // A match distance of zero, which no encoder writes, is not refused: it repeats what stands there. That must not be
    // what the memory held before.
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

/// Decodes the block that begins at `start` and ends with `buffer` into the first `decoded_len` bytes of `buffer`, and
/// gives its decoded length. `buffer` is as much longer than `decoded_len` as [`crate::lz4::in_place_margin`] says.
///
/// # Errors
/// The block is malformed or longer than that; `buffer` then holds anything.
pub(crate) fn decode_in_place(start: usize, decoded_len: usize, buffer: &mut [u8]) -> Result<usize, DecodeError> {
    assert!(start <= buffer.len() && decoded_len <= buffer.len());
    let (stored_len, output_len) = (c_len(buffer.len() - start)?, c_len(decoded_len)?);
    let output = buffer.as_mut_ptr();
    // SAFETY: both runs lie in `buffer`, and liblz4 reads and writes only within them. That they overlap is what it
    // documents as in-place decompression: with the margin, a sound block is never written over before it is read. An
    // unsound one may be, which changes what the rest of it means, but not where is read and written.
    let len =
        unsafe { LZ4_decompress_safe(output.add(start).cast_const().cast(), output.cast(), stored_len, output_len) };
    usize::try_from(len).map_err(|_| MALFORMED)
}

fn c_len(len: usize) -> Result<c_int, DecodeError> {
    c_int::try_from(len).map_err(|_| DecodeError::Corrupt("LZ4 block too long"))
}
