//! Codecs that decode piece by piece.

use floe_image::DecodeError;

use super::request::{HOLDS_MORE, Request, Scratch};

/// The maximum number of decoded bytes that one step skips.
const DROP_BYTES_MAX: usize = 16 * 1024;

/// A codec that decodes piece by piece.
pub(crate) trait Stream {
    /// Decodes from `input`, which it advances, until `output` is full or the stream ends. `output` is not empty.
    ///
    /// After `output` was full, the next call continues the stream; it also detects that the stream ends at that
    /// position.
    ///
    /// # Errors
    /// The bytes violate a rule of the codec, or end before the stream does.
    fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Progress, DecodeError>;
}

/// The result of one step of a [`Stream`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// How many bytes of the output were written.
    pub(crate) written: usize,
    /// Whether the stream ended after them.
    pub(crate) ended: bool,
}

/// Serves a request from a stream at its beginning.
pub(crate) fn answer(
    stream: &mut impl Stream,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    let mut input = request.stored;
    let mut ahead = request.skip;
    while ahead > 0 {
        let dropped = scratch.take(ahead.min(DROP_BYTES_MAX))?;
        let Progress { written, ended } = stream.decode(&mut input, dropped)?;
        ahead -= written;
        if ended {
            return request.answer(0);
        }
    }
    let Progress { written, ended } = stream.decode(&mut input, request.output)?;
    if ended {
        return request.answer(written);
    }
    if request.ends_with_block() {
        let mut probe = [0];
        let Progress { written, ended } = stream.decode(&mut input, &mut probe)?;
        if written > 0 || !ended {
            return Err(HOLDS_MORE);
        }
    }
    request.answer(written)
}
