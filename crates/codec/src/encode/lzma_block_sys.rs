//! liblzma's encoders of .xz and .lzma streams.

use std::ptr;

use liblzma_sys::{
    LZMA_CHECK_CRC32, LZMA_FILTER_ARM, LZMA_FILTER_ARM64, LZMA_FILTER_ARMTHUMB, LZMA_FILTER_IA64, LZMA_FILTER_LZMA2,
    LZMA_FILTER_POWERPC, LZMA_FILTER_RISCV, LZMA_FILTER_SPARC, LZMA_FILTER_X86, LZMA_FINISH, LZMA_MEM_ERROR, LZMA_OK,
    LZMA_STREAM_END, LZMA_VLI_UNKNOWN, lzma_alone_encoder, lzma_code, lzma_end, lzma_filter, lzma_lzma_preset,
    lzma_options_lzma, lzma_stream, lzma_stream_encoder, lzma_vli,
};

use super::{BlockEncoder, EncodeError};

/// liblzma's default level, which is that of all writers of SquashFS.
const LEVEL: u32 = 6;
/// Dictionaries below this size in bytes are not shrunk further: that would not be worth new allocations.
const DICTIONARY_BYTES_MIN: u32 = 64 << 10;
/// The largest dictionary of a .lzma stream in bytes: the largest block of SquashFS.
const ALONE_DICTIONARY_BYTES_MAX: u32 = 1 << 20;
/// Where the header of a .lzma stream has the decoded length.
const ALONE_LEN_AT: std::ops::Range<usize> = 5..13;

/// The branch filters, by their bit in the options of SquashFS.
const FILTERS: [lzma_vli; 8] = [
    LZMA_FILTER_X86,
    LZMA_FILTER_POWERPC,
    LZMA_FILTER_IA64,
    LZMA_FILTER_ARM,
    LZMA_FILTER_ARMTHUMB,
    LZMA_FILTER_SPARC,
    LZMA_FILTER_ARM64,
    LZMA_FILTER_RISCV,
];

/// A liblzma stream that reuses its memory from block to block.
pub(super) struct LzmaBlocks {
    stream: lzma_stream,
    options: Box<lzma_options_lzma>,
    dictionary_bytes: u32,
    /// The branch filters to try, `None` for no filter; empty for .lzma streams.
    filters: Vec<Option<lzma_vli>>,
    trial: Vec<u8>,
}

// SAFETY: liblzma streams are not bound to a thread, and `options` contains no pointers.
unsafe impl Send for LzmaBlocks {}

impl LzmaBlocks {
    /// An encoder of .xz streams.
    pub(super) fn xz(dictionary_bytes: u32, filters: u32) -> Result<Self, EncodeError> {
        if filters >> FILTERS.len() != 0 {
            return Err(EncodeError::Setting("xz has eight branch filters"));
        }
        let chosen = FILTERS.iter().enumerate().filter(|(bit, _)| filters >> bit & 1 != 0);
        Self::new(dictionary_bytes, [None].into_iter().chain(chosen.map(|(_, filter)| Some(*filter))).collect())
    }

    /// An encoder of .lzma streams.
    pub(super) fn alone() -> Result<Self, EncodeError> {
        Self::new(ALONE_DICTIONARY_BYTES_MAX, Vec::new())
    }

    fn new(dictionary_bytes: u32, filters: Vec<Option<lzma_vli>>) -> Result<Self, EncodeError> {
        // SAFETY: both are plain C structures of numbers and pointers, for which all-zero bytes are valid;
        // LZMA_STREAM_INIT initialises `lzma_stream` the same way.
        let (stream, mut options): (lzma_stream, Box<lzma_options_lzma>) =
            unsafe { (std::mem::zeroed(), Box::new(std::mem::zeroed())) };
        // SAFETY: `options` is a valid structure that the function fills in.
        if unsafe { lzma_lzma_preset(&mut *options, LEVEL) } != 0 {
            return Err(EncodeError::Codec("liblzma refused its default level"));
        }
        Ok(Self { stream, options, dictionary_bytes, filters, trial: Vec::new() })
    }

    /// Starts an .xz stream.
    fn start_xz(&mut self, filter: Option<lzma_vli>) -> Result<(), EncodeError> {
        let mut chain: Vec<lzma_filter> =
            filter.into_iter().map(|id| lzma_filter { id, options: ptr::null_mut() }).collect();
        chain.push(lzma_filter { id: LZMA_FILTER_LZMA2, options: ptr::from_mut(&mut *self.options).cast() });
        chain.push(lzma_filter { id: LZMA_VLI_UNKNOWN, options: ptr::null_mut() });
        // SAFETY: the stream is zeroed or was used by liblzma before; the chain is terminated, and liblzma copies it.
        match unsafe { lzma_stream_encoder(&mut self.stream, chain.as_ptr(), LZMA_CHECK_CRC32) } {
            LZMA_OK => Ok(()),
            LZMA_MEM_ERROR => Err(EncodeError::NoMemory),
            _ => Err(EncodeError::Codec("liblzma refused the options of xz")),
        }
    }

    /// Starts a .lzma stream.
    fn start_alone(&mut self) -> Result<(), EncodeError> {
        // SAFETY: the stream is zeroed or was used by liblzma before; `options` lives as long as the stream.
        match unsafe { lzma_alone_encoder(&mut self.stream, &*self.options) } {
            LZMA_OK => Ok(()),
            LZMA_MEM_ERROR => Err(EncodeError::NoMemory),
            _ => Err(EncodeError::Codec("liblzma refused the options of lzma")),
        }
    }

    /// Compresses all input of the started stream; `None` if it does not fit.
    fn finish(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        self.stream.next_in = input.as_ptr();
        self.stream.avail_in = input.len();
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = output.len();
        // SAFETY: the stream was started; its pointers and lengths describe the two slices.
        let result = unsafe { lzma_code(&mut self.stream, LZMA_FINISH) };
        let len = output.len() - self.stream.avail_out;
        self.stream.next_in = ptr::null();
        self.stream.next_out = ptr::null_mut();
        (self.stream.avail_in, self.stream.avail_out) = (0, 0);
        match result {
            LZMA_STREAM_END => Ok(Some(len)),
            // The output is full.
            LZMA_OK => Ok(None),
            LZMA_MEM_ERROR => Err(EncodeError::NoMemory),
            _ => Err(EncodeError::Codec("liblzma did not finish a block")),
        }
    }
}

impl BlockEncoder for LzmaBlocks {
    fn encode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        if output.is_empty() {
            return Ok(None);
        }
        // The encoder's tables take ten times the dictionary size and are cleared for each block, so a short input gets
        // a small dictionary.
        let wanted_bytes = u32::try_from(input.len()).unwrap_or(u32::MAX).checked_next_power_of_two();
        self.options.dict_size = wanted_bytes
            .map_or(self.dictionary_bytes, |bytes| bytes.max(DICTIONARY_BYTES_MIN).min(self.dictionary_bytes));
        if self.filters.is_empty() {
            self.start_alone()?;
            let len = self.finish(input, output)?;
            // liblzma states an unknown length, and ends the stream with a marker. Readers of SquashFS want the length.
            if let Some(stated) = len.and_then(|_| output.get_mut(ALONE_LEN_AT)) {
                stated.copy_from_slice(&(input.len() as u64).to_le_bytes());
            }
            return Ok(len);
        }
        let mut best = None;
        for number in 0..self.filters.len() {
            self.start_xz(self.filters[number])?;
            if number == 0 {
                best = self.finish(input, output)?;
                continue;
            }
            let mut trial = std::mem::take(&mut self.trial);
            trial.resize(best.unwrap_or(output.len()), 0);
            let len = self.finish(input, &mut trial);
            if let Some(len) = len.as_ref().ok().copied().flatten().filter(|len| best.is_none_or(|best| *len < best)) {
                output[..len].copy_from_slice(&trial[..len]);
                best = Some(len);
            }
            self.trial = trial;
            len?;
        }
        Ok(best)
    }
}

impl Drop for LzmaBlocks {
    fn drop(&mut self) {
        // SAFETY: the stream is zeroed or initialised, and is not used afterwards.
        unsafe { lzma_end(&mut self.stream) };
    }
}
