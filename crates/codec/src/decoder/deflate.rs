//! DEFLATE, raw and in the zlib format.

use floe_image::DecodeError;
use libdeflater::{DecompressionError, Decompressor};
use zlib_rs::{Inflate, InflateError, InflateFlush, Status};

use super::{
    request::{ENDS_EARLY, HOLDS_MORE, Request, Scratch},
    stream::{self, Progress, Stream},
};

/// log2 of the largest DEFLATE window.
const WINDOW_LOG2_MAX: u8 = 15;

/// Upper bound of either library's state in bytes; neither library reports it.
pub(crate) const STATE_BYTES_MAX: usize = 64 * 1024;

const MALFORMED: DecodeError = DecodeError::Corrupt("malformed DEFLATE stream");

/// The container of the DEFLATE blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrapping {
    /// None.
    Raw,
    /// The zlib header and checksum.
    Zlib,
}

/// Decoders of whole blocks (libdeflate) and of parts, piece by piece.
#[derive(Default)]
pub(crate) struct Deflate {
    whole: Option<Decompressor>,
    pieces: Option<Inflate>,
}

impl Deflate {
    /// An upper bound of the state in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let count = usize::from(self.whole.is_some()) + usize::from(self.pieces.is_some());
        count * STATE_BYTES_MAX
    }

    /// Decodes the requested part of a raw stream.
    pub(crate) fn decode_raw(
        &mut self,
        window_log2: u8,
        request: &mut Request<'_>,
        scratch: &mut Scratch,
    ) -> Result<usize, DecodeError> {
        if window_log2 > WINDOW_LOG2_MAX {
            return Err(DecodeError::Unsupported("a DEFLATE window above 32 KiB".into()));
        }
        self.decode(Wrapping::Raw, request, scratch)
    }

    /// Decodes the requested part of a stream.
    pub(crate) fn decode(
        &mut self,
        wrapping: Wrapping,
        request: &mut Request<'_>,
        scratch: &mut Scratch,
    ) -> Result<usize, DecodeError> {
        if request.is_whole() {
            return self.decode_whole(wrapping, request);
        }
        let pieces = self.pieces.get_or_insert_with(|| Inflate::new(false, WINDOW_LOG2_MAX));
        pieces.reset(wrapping == Wrapping::Zlib);
        stream::answer(pieces, request, scratch)
    }

    fn decode_whole(&mut self, wrapping: Wrapping, request: &mut Request<'_>) -> Result<usize, DecodeError> {
        let whole = self.whole.get_or_insert_with(Decompressor::new);
        let decoded = match wrapping {
            Wrapping::Raw => whole.deflate_decompress(request.stored, request.output),
            Wrapping::Zlib => whole.zlib_decompress(request.stored, request.output),
        };
        match decoded {
            Ok(len) => request.answer(len),
            Err(DecompressionError::InsufficientSpace) => Err(HOLDS_MORE),
            Err(DecompressionError::BadData) => Err(MALFORMED),
        }
    }
}

impl Stream for Inflate {
    fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Progress, DecodeError> {
        let mut written = 0;
        loop {
            let (total_in, total_out) = (self.total_in(), self.total_out());
            let status =
                self.decompress(input, &mut output[written..], InflateFlush::SyncFlush).map_err(decode_error)?;
            let consumed = (self.total_in() - total_in) as usize;
            let fresh = (self.total_out() - total_out) as usize;
            *input = &input[consumed..];
            written += fresh;
            match status {
                Status::StreamEnd => return Ok(Progress { written, ended: true }),
                _ if written == output.len() => return Ok(Progress { written, ended: false }),
                _ if consumed > 0 || fresh > 0 => {}
                _ => return Err(ENDS_EARLY),
            }
        }
    }
}

fn decode_error(error: InflateError) -> DecodeError {
    match error {
        InflateError::NeedDict { .. } => DecodeError::Unsupported("a zlib stream with a preset dictionary".into()),
        InflateError::MemError => DecodeError::NoMemory,
        InflateError::StreamError | InflateError::DataError => MALFORMED,
    }
}
