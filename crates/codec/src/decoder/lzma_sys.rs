//! liblzma's decoders as one reusable stream.

use std::{mem, ptr};

use floe_image::DecodeError;
use liblzma_sys::{
    LZMA_BUF_ERROR, LZMA_FILTER_LZMA1, LZMA_FILTER_LZMA2, LZMA_FORMAT_ERROR, LZMA_MEM_ERROR, LZMA_MEMLIMIT_ERROR,
    LZMA_OK, LZMA_OPTIONS_ERROR, LZMA_RUN, LZMA_STREAM_END, LZMA_VLI_UNKNOWN, lzma_alone_decoder, lzma_code,
    lzma_crc32, lzma_end, lzma_filter, lzma_options_lzma, lzma_raw_decoder_memusage, lzma_ret, lzma_stream,
    lzma_stream_decoder,
};

use super::{
    lzma_memory_sys::LzmaMemory,
    request::ENDS_EARLY,
    stream::{Progress, Stream},
};

unsafe extern "C" {
    fn lzma_microlzma_decoder(
        stream: *mut lzma_stream,
        compressed_len: u64,
        decoded_len: u64,
        decoded_len_is_exact: u8,
        dictionary_bytes: u32,
    ) -> lzma_ret;
}

/// The memory that liblzma accounts for each filter other than LZMA, in bytes.
const FILTER_BYTES_MAX: u64 = 1024;
/// How many branch and delta filters may precede LZMA2.
const FILTER_COUNT_MAX: u64 = 3;

/// A liblzma decoder. Starting another stream of the same kind reuses its memory.
pub(crate) struct LzmaStream {
    stream: lzma_stream,
    /// The allocator of the stream; it must outlive the stream.
    memory: LzmaMemory,
}

// SAFETY: the state and its memory are owned by the value, tied to no thread, and only reached through `&mut`.
unsafe impl Send for LzmaStream {}

impl LzmaStream {
    /// Creates a stream that is not started.
    pub(crate) fn new() -> Self {
        // SAFETY: LZMA_STREAM_INIT is all zeros: null pointers, zero counts, and no allocator.
        let mut stream: lzma_stream = unsafe { mem::zeroed() };
        let memory = LzmaMemory::new();
        stream.allocator = memory.allocator();
        Self { stream, memory }
    }

    /// The memory that the stream holds, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.memory.held_bytes()
    }

    /// Starts a MicroLZMA stream.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn start_micro(
        &mut self,
        stored_len: usize,
        decoded_len: usize,
        is_exact: bool,
        dictionary_bytes: u32,
    ) -> Result<(), DecodeError> {
        // SAFETY: the stream is initialised, by `new` or by an earlier start.
        check(unsafe {
            lzma_microlzma_decoder(
                &mut self.stream,
                stored_len as u64,
                decoded_len as u64,
                is_exact.into(),
                dictionary_bytes,
            )
        })
    }

    /// Starts an .xz stream that may use a dictionary of this size in bytes, and up to three filters before LZMA2.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn start_xz(&mut self, dictionary_bytes: u32) -> Result<(), DecodeError> {
        let memory_max =
            memory_bytes(LZMA_FILTER_LZMA2, dictionary_bytes).saturating_add(FILTER_BYTES_MAX * FILTER_COUNT_MAX);
        // SAFETY: as in `start_micro`.
        check(unsafe { lzma_stream_decoder(&mut self.stream, memory_max, 0) })
    }

    /// Starts a .lzma stream that may use a dictionary of this size in bytes.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn start_alone(&mut self, dictionary_bytes: u32) -> Result<(), DecodeError> {
        // SAFETY: as in `start_micro`.
        check(unsafe { lzma_alone_decoder(&mut self.stream, memory_bytes(LZMA_FILTER_LZMA1, dictionary_bytes)) })
    }
}

impl LzmaStream {
    /// Takes the headers of a started stream, instead of those among its stored bytes.
    ///
    /// # Errors
    /// They are invalid, or need more memory than permitted.
    pub(crate) fn take(&mut self, headers: &[u8]) -> Result<(), DecodeError> {
        // Headers decode to nothing, but liblzma looks at some only if there is room for output.
        let mut room = [0];
        self.stream.next_in = headers.as_ptr();
        self.stream.avail_in = headers.len();
        self.stream.next_out = room.as_mut_ptr();
        self.stream.avail_out = room.len();
        // SAFETY: the stream was started; its input and output are valid for the lengths just set.
        let code = unsafe { lzma_code(&mut self.stream, LZMA_RUN) };
        let is_taken = self.stream.avail_in == 0 && self.stream.avail_out == room.len();
        self.stream.next_in = ptr::null();
        self.stream.avail_in = 0;
        self.stream.next_out = ptr::null_mut();
        check(code)?;
        if is_taken { Ok(()) } else { Err(DecodeError::Corrupt("malformed LZMA stream")) }
    }
}

/// The CRC-32 of some bytes.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    // SAFETY: the bytes are valid for their length.
    unsafe { lzma_crc32(bytes.as_ptr(), bytes.len(), 0) }
}

impl Stream for LzmaStream {
    fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Progress, DecodeError> {
        let mut written = 0;
        loop {
            self.stream.next_in = input.as_ptr();
            self.stream.avail_in = input.len();
            self.stream.next_out = output[written..].as_mut_ptr();
            self.stream.avail_out = output.len() - written;
            // SAFETY: the stream was started; its input and output are valid for the lengths just set.
            let code = unsafe { lzma_code(&mut self.stream, LZMA_RUN) };
            let consumed = input.len() - self.stream.avail_in;
            let fresh = output.len() - written - self.stream.avail_out;
            self.stream.next_in = ptr::null();
            self.stream.next_out = ptr::null_mut();
            *input = &input[consumed..];
            written += fresh;
            match code {
                LZMA_STREAM_END => return Ok(Progress { written, ended: true }),
                LZMA_OK if written == output.len() => {
                    return Ok(Progress { written, ended: false });
                }
                LZMA_OK if consumed > 0 || fresh > 0 => {}
                // No progress: the input is exhausted.
                LZMA_OK => return Err(ENDS_EARLY),
                other => check(other)?,
            }
        }
    }
}

impl Drop for LzmaStream {
    fn drop(&mut self) {
        // SAFETY: the stream is initialised and not used afterwards; its memory is dropped later.
        unsafe { lzma_end(&mut self.stream) }
    }
}

/// The memory that liblzma needs for a decoder with this dictionary size.
fn memory_bytes(filter: u64, dictionary_bytes: u32) -> u64 {
    // SAFETY: the structure holds integers and pointers, for which zero is valid; liblzma reads only the dictionary
    // size.
    let mut options: lzma_options_lzma = unsafe { mem::zeroed() };
    options.dict_size = dictionary_bytes;
    options.lc = 3;
    options.pb = 2;
    let filters = [
        lzma_filter { id: filter, options: ptr::from_mut(&mut options).cast() },
        lzma_filter { id: LZMA_VLI_UNKNOWN, options: ptr::null_mut() },
    ];
    // SAFETY: the filter chain is terminated, and its options live until the call returns.
    unsafe { lzma_raw_decoder_memusage(filters.as_ptr()) }
}

fn check(code: lzma_ret) -> Result<(), DecodeError> {
    match code {
        LZMA_OK | LZMA_STREAM_END => Ok(()),
        LZMA_MEM_ERROR => Err(DecodeError::NoMemory),
        LZMA_MEMLIMIT_ERROR => Err(DecodeError::Unsupported("LZMA dictionary larger than the image allows".into())),
        LZMA_FORMAT_ERROR => Err(DecodeError::Corrupt("missing LZMA header")),
        LZMA_OPTIONS_ERROR => Err(DecodeError::Corrupt("invalid LZMA options")),
        LZMA_BUF_ERROR => Err(ENDS_EARLY),
        _ => Err(DecodeError::Corrupt("malformed LZMA stream")),
    }
}
