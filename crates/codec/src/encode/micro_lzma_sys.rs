//! liblzma's MicroLZMA encoder.

use liblzma_sys::{
    LZMA_FINISH, LZMA_MEM_ERROR, LZMA_OK, LZMA_PRESET_EXTREME, LZMA_STREAM_END, lzma_code, lzma_end, lzma_lzma_preset,
    lzma_microlzma_encoder, lzma_options_lzma, lzma_stream,
};

use super::EncodeError;

/// Dictionaries below this size in bytes are not shrunk further: that would not be worth new allocations.
const DICTIONARY_BYTES_MIN: u32 = 64 << 10;
/// log2 of the ratio of dictionary sizes. liblzma allocates its tables again whenever the size changes.
const DICTIONARY_STEP_LOG2: u32 = 3;

/// A liblzma stream that reuses its memory from block to block.
pub(super) struct Stream {
    stream: lzma_stream,
    options: Box<lzma_options_lzma>,
    dictionary_bytes: u32,
}

// SAFETY: liblzma streams are not bound to a thread, and `options` contains no pointers.
unsafe impl Send for Stream {}

impl Stream {
    /// Creates a stream of this level, preset variant and dictionary size in bytes.
    pub(super) fn new(level: u8, extreme: bool, dictionary_bytes: u32) -> Result<Self, EncodeError> {
        // SAFETY: both are plain C structures of numbers and pointers, for which all-zero bytes are valid;
        // LZMA_STREAM_INIT initialises `lzma_stream` the same way.
        let (stream, mut options): (lzma_stream, Box<lzma_options_lzma>) =
            unsafe { (std::mem::zeroed(), Box::new(std::mem::zeroed())) };
        let preset = u32::from(level) | if extreme { LZMA_PRESET_EXTREME } else { 0 };
        // SAFETY: `options` is a valid structure that the function fills in.
        if unsafe { lzma_lzma_preset(&mut *options, preset) } != 0 {
            return Err(EncodeError::Setting("lzma level must be 0 to 9, or 100 to 109"));
        }
        Ok(Self { stream, options, dictionary_bytes })
    }

    /// Fills `output`; returns (consumed, produced).
    pub(super) fn compress_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), EncodeError> {
        // The encoder's tables take ten times the dictionary size and are cleared for each block, so a short input gets
        // a small dictionary.
        let wanted_bytes = u32::try_from(input.len()).unwrap_or(u32::MAX).max(DICTIONARY_BYTES_MIN);
        self.options.dict_size = self.dictionary_bytes;
        while self.options.dict_size >> DICTIONARY_STEP_LOG2 >= wanted_bytes {
            self.options.dict_size >>= DICTIONARY_STEP_LOG2;
        }
        // SAFETY: the stream is zeroed or was used by liblzma before; `options` lives as long as the stream.
        match unsafe { lzma_microlzma_encoder(&mut self.stream, &*self.options) } {
            LZMA_OK => {}
            LZMA_MEM_ERROR => return Err(EncodeError::NoMemory),
            _ => return Err(EncodeError::Codec("liblzma refused the options of MicroLZMA")),
        }
        self.stream.next_in = input.as_ptr();
        self.stream.avail_in = input.len();
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = output.len();
        // SAFETY: the stream was initialised above; its pointers and lengths describe the two slices.
        let result = unsafe { lzma_code(&mut self.stream, LZMA_FINISH) };
        let totals = (self.stream.total_in, self.stream.total_out);
        self.stream.next_in = std::ptr::null();
        self.stream.next_out = std::ptr::null_mut();
        (self.stream.avail_in, self.stream.avail_out) = (0, 0);
        if result != LZMA_STREAM_END {
            return Err(EncodeError::Codec("liblzma did not finish a block"));
        }
        Ok((usize::try_from(totals.0).unwrap_or(0), usize::try_from(totals.1).unwrap_or(0)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is zeroed or initialised, and is not used afterwards.
        unsafe { lzma_end(&mut self.stream) };
    }
}
