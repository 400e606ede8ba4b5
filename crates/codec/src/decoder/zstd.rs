//! Zstandard frames.

use floe_image::DecodeError;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::{
    request::{ENDS_EARLY, HOLDS_LESS, HOLDS_MORE, Request, Scratch},
    stream::{self, Progress, Stream},
};

/// log2 of the smallest window of zstd, and of the largest accepted window, which bounds memory.
const WINDOW_LOG2_MIN: u8 = 10;
const WINDOW_LOG2_MAX: u8 = 27;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The largest decoded length of a block, unless the window is smaller (RFC 8878, section 3.1.1.2.4).
const BLOCK_BYTES_MAX: u64 = 128 << 10;

/// Block type RLE: the block repeats one byte.
const BLOCK_OF_ONE_BYTE: u32 = 1;

const MALFORMED: DecodeError = DecodeError::Corrupt("malformed zstd frame");
const HEADER_CUT: DecodeError = DecodeError::Corrupt("zstd frame header past the end of its block");

/// Decodes Zstandard frames.
pub(crate) struct Zstd {
    context: DCtx<'static>,
}

impl Zstd {
    /// Creates a decoder without a window.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn new() -> Result<Self, DecodeError> {
        Ok(Self { context: DCtx::try_create().ok_or(DecodeError::NoMemory)? })
    }

    /// The memory that the decoder holds, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// Decodes the requested part of a frame.
    pub(crate) fn decode(
        &mut self,
        window_log2_max: u8,
        request: &mut Request<'_>,
        scratch: &mut Scratch,
    ) -> Result<usize, DecodeError> {
        let window_log2_max = window_log2_max.clamp(WINDOW_LOG2_MIN, WINDOW_LOG2_MAX);
        let header = FrameHeader::parse(request.stored)?;
        if header.reach_bytes() > 1 << window_log2_max || header.window_bytes > 1 << WINDOW_LOG2_MAX {
            return Err(DecodeError::Unsupported("zstd window larger than the image allows".into()));
        }
        if request.ends_with_block()
            && let Some(content_bytes) = header.content_bytes
        {
            let len_max = request.len_max() as u64;
            if content_bytes > len_max {
                return Err(HOLDS_MORE);
            }
            if content_bytes < len_max && !request.may_be_short() {
                return Err(HOLDS_LESS);
            }
        }
        if request.is_whole() {
            return self.decode_whole(header, request);
        }
        self.context.reset(ResetDirective::SessionOnly).map_err(|_| MALFORMED)?;
        // libzstd compares the window itself with this limit, but allocates no more than the content needs.
        self.context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG2_MAX.into())).map_err(|_| MALFORMED)?;
        stream::answer(self, request, scratch)
    }

    fn decode_whole(&mut self, header: FrameHeader, request: &mut Request<'_>) -> Result<usize, DecodeError> {
        // Only the first frame: libzstd would continue with following frames.
        let frame_len = zstd_safe::find_frame_compressed_size(request.stored).map_err(decode_error)?;
        let frame = request.stored.get(..frame_len).ok_or(ENDS_EARLY)?;
        check_blocks(frame, header)?;
        let len = self.context.decompress(request.output, frame).map_err(decode_error)?;
        request.answer(len)
    }
}

impl Stream for Zstd {
    fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Progress, DecodeError> {
        let mut written = 0;
        loop {
            let mut from = InBuffer::around(input);
            let mut to = OutBuffer::around(&mut output[written..]);
            let ended = self.context.decompress_stream(&mut to, &mut from).map_err(decode_error)? == 0;
            let (consumed, fresh) = (from.pos(), to.pos());
            *input = &input[consumed..];
            written += fresh;
            if ended || written == output.len() {
                return Ok(Progress { written, ended });
            }
            if consumed == 0 && fresh == 0 {
                return Err(ENDS_EARLY);
            }
        }
    }
}

/// A frame header (RFC 8878, section 3.1.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FrameHeader {
    window_bytes: u64,
    content_bytes: Option<u64>,
    /// The length of the header in bytes.
    len: usize,
}

impl FrameHeader {
    /// The largest match distance of the frame in bytes: its window, or its content if that is smaller.
    fn reach_bytes(self) -> u64 {
        self.window_bytes.min(self.content_bytes.unwrap_or(u64::MAX))
    }

    fn parse(frame: &[u8]) -> Result<Self, DecodeError> {
        if !frame.starts_with(&MAGIC) {
            return Err(DecodeError::Corrupt("missing zstd frame"));
        }
        let descriptor = *frame.get(4).ok_or(HEADER_CUT)?;
        let is_single_segment = descriptor & 0x20 != 0;
        let mut at = 5;
        let mut window_bytes = None;
        if !is_single_segment {
            let window = *frame.get(at).ok_or(HEADER_CUT)?;
            let base = 1_u64 << (10 + (window >> 3));
            window_bytes = Some(base + base / 8 * u64::from(window & 7));
            at += 1;
        }
        let dictionary_id_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let dictionary_id = frame.get(at..at + dictionary_id_len).ok_or(HEADER_CUT)?;
        if dictionary_id.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Unsupported("zstd frame with a dictionary".into()));
        }
        at += dictionary_id_len;
        let content_len = match descriptor >> 6 {
            0 => usize::from(is_single_segment),
            log2 => 1 << log2,
        };
        let mut content = [0; 8];
        content[..content_len].copy_from_slice(frame.get(at..at + content_len).ok_or(HEADER_CUT)?);
        let content_bytes = match content_len {
            0 => None,
            2 => Some(u64::from_le_bytes(content) + 256),
            _ => Some(u64::from_le_bytes(content)),
        };
        Ok(Self {
            window_bytes: window_bytes.or(content_bytes).ok_or(HEADER_CUT)?,
            content_bytes,
            len: at + content_len,
        })
    }
}

/// Checks that no block exceeds the block size limit. libzstd checks this when it decodes a frame piece by piece, but
/// not when it decodes the whole frame at once; the result must not depend on which part is requested.
fn check_blocks(frame: &[u8], header: FrameHeader) -> Result<(), DecodeError> {
    let len_max = header.window_bytes.min(BLOCK_BYTES_MAX);
    let mut at = header.len;
    loop {
        let block = frame.get(at..at + 3).ok_or(ENDS_EARLY)?;
        let block = u32::from_le_bytes([block[0], block[1], block[2], 0]);
        let (is_last, kind, len) = (block & 1 == 1, block >> 1 & 3, block >> 3);
        if u64::from(len) > len_max {
            return Err(MALFORMED);
        }
        if is_last {
            return Ok(());
        }
        at += 3 + if kind == BLOCK_OF_ONE_BYTE { 1 } else { len as usize };
    }
}

fn decode_error(code: usize) -> DecodeError {
    match zstd_safe::get_error_name(code) {
        "Allocation error : not enough memory" => DecodeError::NoMemory,
        "Destination buffer is too small" => HOLDS_MORE,
        "Src size is incorrect" => ENDS_EARLY,
        "Frame requires too much memory for decoding" => {
            DecodeError::Unsupported("zstd window larger than the image allows".into())
        }
        _ => MALFORMED,
    }
}
