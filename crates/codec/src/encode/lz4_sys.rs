//! The functions of liblz4 that the crate `lz4-sys` builds and does not declare.

use std::ffi::{c_char, c_int, c_void};

// Links liblz4.
use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_compress_destSize(
        source: *const c_char,
        output: *mut c_char,
        source_len: *mut c_int,
        output_len: c_int,
    ) -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_HC_destSize(
        state: *mut c_void,
        source: *const c_char,
        output: *mut c_char,
        source_len: *mut c_int,
        output_len: c_int,
        level: c_int,
    ) -> c_int;
}

/// How much liblz4 takes at once, in bytes (`LZ4_MAX_INPUT_SIZE`).
pub(super) const INPUT_LEN_MAX: usize = 0x7E00_0000;

/// Fills `output` by the fast method; gives (consumed, produced).
pub(super) fn compress_to_fit(input: &[u8], output: &mut [u8]) -> (usize, usize) {
    let mut consumed = c_int_len(input.len());
    // SAFETY: the first `consumed` bytes of `input` are readable and the given number of bytes of `output` is writable;
    // liblz4 keeps within both and keeps no pointer.
    let produced = unsafe {
        LZ4_compress_destSize(input.as_ptr().cast(), output.as_mut_ptr().cast(), &mut consumed, c_int_len(output.len()))
    };
    (usize::try_from(consumed).unwrap_or(0), usize::try_from(produced).unwrap_or(0))
}

/// The working state of the thorough method.
pub(super) struct HighState {
    words: Vec<u64>,
}

impl HighState {
    pub(super) fn new() -> Self {
        // SAFETY: a function without arguments that gives a constant.
        let len = unsafe { LZ4_sizeofStateHC() };
        Self { words: vec![0; usize::try_from(len).unwrap_or(0).div_ceil(size_of::<u64>())] }
    }

    /// Fills `output` by the thorough method; gives (consumed, produced).
    pub(super) fn compress_to_fit(&mut self, level: u8, input: &[u8], output: &mut [u8]) -> (usize, usize) {
        let mut consumed = c_int_len(input.len());
        // SAFETY: `words` is as long as LZ4_sizeofStateHC says and aligned for its u64 and pointers, and liblz4
        // initialises it anew; the slices are as in `compress_to_fit`.
        let produced = unsafe {
            LZ4_compress_HC_destSize(
                self.words.as_mut_ptr().cast(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &mut consumed,
                c_int_len(output.len()),
                c_int::from(level),
            )
        };
        (usize::try_from(consumed).unwrap_or(0), usize::try_from(produced).unwrap_or(0))
    }
}

fn c_int_len(len: usize) -> c_int {
    c_int::try_from(len.min(INPUT_LEN_MAX)).unwrap_or(c_int::MAX)
}
