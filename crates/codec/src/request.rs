//! What is asked of a codec.

use floe_image::{DecodeError, DecodedLen};

/// The block holds fewer decoded bytes than it must.
pub(crate) const HOLDS_LESS: DecodeError = DecodeError::Corrupt("a block decodes to less than it should");
/// The block holds more decoded bytes than it may.
pub(crate) const HOLDS_MORE: DecodeError = DecodeError::Corrupt("a block decodes to more than it should");
/// The stored bytes end inside the stream.
pub(crate) const ENDS_EARLY: DecodeError = DecodeError::Corrupt("the stored bytes of a block end early");
/// The run of stored bytes holds nothing.
pub(crate) const EMPTY: DecodeError = DecodeError::Corrupt("a block without stored bytes");

/// A run of decoded bytes of one block.
pub(crate) struct Request<'a> {
    /// The stored bytes, padding apart.
    pub(crate) stored: &'a [u8],
    /// How many decoded bytes to drop first.
    pub(crate) skip: usize,
    /// Where those that follow go.
    pub(crate) output: &'a mut [u8],
    decoded_len: DecodedLen,
    len_max: usize,
}

impl<'a> Request<'a> {
    /// A request for the bytes from `skip` on of a block.
    ///
    /// # Errors
    /// It goes past the length that the block must have.
    pub(crate) fn new(
        decoded_len: DecodedLen,
        stored: &'a [u8],
        skip: usize,
        output: &'a mut [u8],
    ) -> Result<Self, DecodeError> {
        let len_max = usize::try_from(decoded_len.bytes()).unwrap_or(usize::MAX);
        let rest = len_max.saturating_sub(skip);
        let output = match decoded_len {
            DecodedLen::AtMost(_) => {
                let len = output.len().min(rest);
                &mut output[..len]
            }
            DecodedLen::Exact(_) | DecodedLen::AtLeast(_) if output.len() <= rest && skip <= len_max => output,
            DecodedLen::Exact(_) | DecodedLen::AtLeast(_) => return Err(HOLDS_LESS),
        };
        Ok(Self { stored, skip, output, decoded_len, len_max })
    }

    /// The decoded length that is known: exact, a lower or an upper bound.
    pub(crate) fn len_max(&self) -> usize {
        self.len_max
    }

    /// The decoded byte after the last one asked for.
    pub(crate) fn end(&self) -> usize {
        self.skip.saturating_add(self.output.len())
    }

    /// Whether the block may end before the request does.
    pub(crate) fn may_be_short(&self) -> bool {
        matches!(self.decoded_len, DecodedLen::AtMost(_))
    }

    /// Whether the block may hold more than is known.
    pub(crate) fn may_be_longer(&self) -> bool {
        matches!(self.decoded_len, DecodedLen::AtLeast(_))
    }

    /// Whether the block must end where the request does.
    pub(crate) fn ends_with_block(&self) -> bool {
        !self.may_be_longer() && self.end() >= self.len_max
    }

    /// Whether every byte of the block is asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.skip == 0 && self.ends_with_block()
    }

    /// The answer to a request that got `len` bytes from a block that then ended, or was left where nothing more was
    /// asked for.
    pub(crate) fn answer(&self, len: usize) -> Result<usize, DecodeError> {
        if len == self.output.len() || self.may_be_short() { Ok(len) } else { Err(HOLDS_LESS) }
    }
}
