//! Codecs that decode in pieces.

use floe_image::DecodeError;

use crate::{
    request::{HOLDS_MORE, Request},
    scratch::Scratch,
};

/// How many decoded bytes are dropped in one step, of those that precede what is asked for.
const DROP_BYTES_MAX: usize = 16 * 1024;

/// A codec that decodes in pieces.
pub(crate) trait Stream {
    /// Decodes from `input`, which is moved on, until `output`, which is not empty, is full or the stream ends.
    ///
    /// Called again after `output` was full, with a further one, it goes on; so it also tells whether the stream ends
    /// there.
    ///
    /// # Errors
    /// The bytes break a rule of the codec, or end before the stream does.
    fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Progress, DecodeError>;
}

/// How far one step of a [`Stream`] got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// How many bytes of the output were written.
    pub(crate) written: usize,
    /// Whether the stream ended with them.
    pub(crate) ended: bool,
}

/// Answers a request with a stream that stands at its beginning.
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
