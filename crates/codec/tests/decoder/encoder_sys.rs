//! The libraries' own encoders, which make the inputs of the decoder tests.

use std::{ffi::c_int, mem, ptr};

use liblzma_sys::{
    LZMA_CHECK_CRC32, LZMA_FILTER_LZMA2, LZMA_FINISH, LZMA_OK, LZMA_STREAM_END, LZMA_VLI_UNKNOWN, lzma_alone_encoder,
    lzma_code, lzma_end, lzma_filter, lzma_lzma_preset, lzma_options_lzma, lzma_ret, lzma_stream, lzma_stream_encoder,
};

unsafe extern "C" {
    fn lzma_microlzma_encoder(stream: *mut lzma_stream, options: *const lzma_options_lzma) -> lzma_ret;
}

pub(crate) fn lz4(data: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; data.len() + data.len() / 255 + 16];
    // SAFETY: both slices are valid for the given lengths.
    let len = unsafe {
        lz4_sys::LZ4_compress_default(
            data.as_ptr().cast(),
            stored.as_mut_ptr().cast(),
            c_int::try_from(data.len()).unwrap(),
            c_int::try_from(stored.len()).unwrap(),
        )
    };
    stored.truncate(usize::try_from(len).unwrap());
    assert!(!stored.is_empty());
    stored
}

pub(crate) fn micro_lzma(data: &[u8], dictionary_bytes: u32) -> Vec<u8> {
    let options = lzma_options(dictionary_bytes);
    // SAFETY: an initialised stream, and options that live until the call returns.
    lzma(data, |stream| unsafe { lzma_microlzma_encoder(stream, &options) })
}

pub(crate) fn lzma_alone(data: &[u8], dictionary_bytes: u32) -> Vec<u8> {
    let options = lzma_options(dictionary_bytes);
    // SAFETY: as above.
    lzma(data, |stream| unsafe { lzma_alone_encoder(stream, &options) })
}

/// An .xz stream with these branch filters before LZMA2.
pub(crate) fn xz(data: &[u8], dictionary_bytes: u32, branch_filters: &[u64]) -> Vec<u8> {
    let mut options = lzma_options(dictionary_bytes);
    let mut filters: Vec<_> =
        branch_filters.iter().map(|id| lzma_filter { id: *id, options: ptr::null_mut() }).collect();
    filters.push(lzma_filter { id: LZMA_FILTER_LZMA2, options: ptr::from_mut(&mut options).cast() });
    filters.push(lzma_filter { id: LZMA_VLI_UNKNOWN, options: ptr::null_mut() });
    // SAFETY: an initialised stream, and a terminated chain whose options live until the call returns.
    lzma(data, |stream| unsafe { lzma_stream_encoder(stream, filters.as_ptr(), LZMA_CHECK_CRC32) })
}

fn lzma_options(dictionary_bytes: u32) -> lzma_options_lzma {
    // SAFETY: the structure holds integers and pointers, for which zero is valid; the preset fills it in.
    let mut options: lzma_options_lzma = unsafe { mem::zeroed() };
    // SAFETY: `options` is valid for writes.
    assert_eq!(unsafe { lzma_lzma_preset(&mut options, 6) }, 0);
    options.dict_size = dictionary_bytes;
    options
}

fn lzma(data: &[u8], start: impl FnOnce(*mut lzma_stream) -> lzma_ret) -> Vec<u8> {
    // SAFETY: all zeros is LZMA_STREAM_INIT.
    let mut stream: lzma_stream = unsafe { mem::zeroed() };
    assert_eq!(start(&mut stream), LZMA_OK);
    let mut stored = vec![0; data.len() + data.len() / 2 + 1024];
    stream.next_in = data.as_ptr();
    stream.avail_in = data.len();
    stream.next_out = stored.as_mut_ptr();
    stream.avail_out = stored.len();
    // SAFETY: the stream was started, and input and output are valid for their lengths.
    let code = unsafe { lzma_code(&mut stream, LZMA_FINISH) };
    let len = stored.len() - stream.avail_out;
    // SAFETY: the stream is not used after this.
    unsafe { lzma_end(&mut stream) };
    assert_eq!(code, LZMA_STREAM_END);
    stored.truncate(len);
    stored
}
