//! Functions of liblz4 that the crate `lz4-sys` builds but does not declare.

use std::ffi::{c_char, c_int, c_void};

// Links liblz4.
use lz4_sys as _;

use super::EncodeError;

unsafe extern "C" {
    fn LZ4_compress_destSize(
        source: *const c_char,
        output: *mut c_char,
        source_len: *mut c_int,
        output_len: c_int,
    ) -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, state_len: usize) -> *mut c_void;
    fn LZ4_resetStreamHC_fast(state: *mut c_void, level: c_int);
    fn LZ4_compress_HC_continue_destSize(
        state: *mut c_void,
        source: *const c_char,
        output: *mut c_char,
        source_len: *mut c_int,
        output_len: c_int,
    ) -> c_int;
}

/// The longest input of one call, in bytes (`LZ4_MAX_INPUT_SIZE`).
pub(super) const INPUT_LEN_MAX: usize = 0x7E00_0000;

/// Fills `output` by fast compression; returns (consumed, produced).
pub(super) fn compress_to_fit(input: &[u8], output: &mut [u8]) -> (usize, usize) {
    let mut consumed = c_int_len(input.len());
    // SAFETY: the first `consumed` bytes of `input` are readable and `output` is writable for the given length; liblz4
    // stays within both and keeps no pointer.
    let produced = unsafe {
        LZ4_compress_destSize(input.as_ptr().cast(), output.as_mut_ptr().cast(), &mut consumed, c_int_len(output.len()))
    };
    (usize::try_from(consumed).unwrap_or(0), usize::try_from(produced).unwrap_or(0))
}

/// The working state of high compression. The tables are not cleared between blocks, because that takes longer than
/// compressing a block of 4 KiB. Positions continue to increase instead, so that old entries are out of the window.
pub(super) struct HighState {
    words: Vec<u64>,
}

impl HighState {
    pub(super) fn new() -> Result<Self, EncodeError> {
        // SAFETY: the function takes no arguments and returns a constant.
        let len = unsafe { LZ4_sizeofStateHC() };
        let mut words = vec![0u64; usize::try_from(len).unwrap_or(0).div_ceil(size_of::<u64>())];
        // SAFETY: all of `words` is writable; liblz4 checks its length and alignment.
        let state = unsafe { LZ4_initStreamHC(words.as_mut_ptr().cast(), words.len() * size_of::<u64>()) };
        if state.is_null() { Err(EncodeError::Codec("liblz4 refused its working state")) } else { Ok(Self { words }) }
    }

    /// Fills `output` by high compression; returns (consumed, produced).
    pub(super) fn compress_to_fit(&mut self, level: u8, input: &[u8], output: &mut [u8]) -> (usize, usize) {
        let mut consumed = c_int_len(input.len());
        let state = self.words.as_mut_ptr().cast();
        // SAFETY: `words` was initialised by LZ4_initStreamHC, and only these functions use it. The reset makes liblz4
        // drop its pointer to the previous input; the slices are as in `compress_to_fit`.
        let produced = unsafe {
            LZ4_resetStreamHC_fast(state, c_int::from(level));
            LZ4_compress_HC_continue_destSize(
                state,
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &mut consumed,
                c_int_len(output.len()),
            )
        };
        (usize::try_from(consumed).unwrap_or(0), usize::try_from(produced).unwrap_or(0))
    }
}

fn c_int_len(len: usize) -> c_int {
    c_int::try_from(len.min(INPUT_LEN_MAX)).unwrap_or(c_int::MAX)
}
