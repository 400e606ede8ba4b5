//! The part of a block that a caller requests, and the temporary memory of a decode.

use floe_image::{DecodeError, DecodedLen};

/// The block decodes to fewer bytes than required.
pub(crate) const HOLDS_LESS: DecodeError = DecodeError::Corrupt("block decodes to less than its stated length");
/// The block decodes to more bytes than allowed.
pub(crate) const HOLDS_MORE: DecodeError = DecodeError::Corrupt("block decodes to more than its stated length");
/// The stored bytes end inside the stream.
pub(crate) const ENDS_EARLY: DecodeError = DecodeError::Corrupt("stored bytes of a block end early");
/// The block has no stored bytes.
pub(crate) const EMPTY: DecodeError = DecodeError::Corrupt("block without stored bytes");

/// A request for part of the decoded bytes of a block.
pub(crate) struct Request<'a> {
    /// The stored bytes without padding.
    pub(crate) stored: &'a [u8],
    /// How many decoded bytes to skip first.
    pub(crate) skip: usize,
    /// Receives the bytes that follow.
    pub(crate) output: &'a mut [u8],
    decoded_len: DecodedLen,
    len_max: usize,
}

impl<'a> Request<'a> {
    /// Creates a request for the bytes from `skip` on.
    ///
    /// # Errors
    /// The request exceeds the length that the block must have.
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

    /// The known decoded length: exact, or a lower or upper bound.
    pub(crate) fn len_max(&self) -> usize {
        self.len_max
    }

    /// The end of the request within the decoded bytes.
    pub(crate) fn end(&self) -> usize {
        self.skip.saturating_add(self.output.len())
    }

    /// Whether the block may end before the request does.
    pub(crate) fn may_be_short(&self) -> bool {
        matches!(self.decoded_len, DecodedLen::AtMost(_))
    }

    /// Whether the block may hold more than the known length.
    pub(crate) fn may_be_longer(&self) -> bool {
        matches!(self.decoded_len, DecodedLen::AtLeast(_))
    }

    /// Whether the block must end where the request does.
    pub(crate) fn ends_with_block(&self) -> bool {
        !self.may_be_longer() && self.end() >= self.len_max
    }

    /// Whether the request covers the whole block.
    pub(crate) fn is_whole(&self) -> bool {
        self.skip == 0 && self.ends_with_block()
    }

    /// The result for a request that received `len` bytes, after which the block ended or decoding stopped.
    pub(crate) fn answer(&self, len: usize) -> Result<usize, DecodeError> {
        if len == self.output.len() || self.may_be_short() { Ok(len) } else { Err(HOLDS_LESS) }
    }
}

/// Temporary memory that grows to the largest decode and is reused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    /// The largest use of the current or last decode, in bytes.
    used_last: usize,
    /// The largest use of any decode, in bytes.
    used_max: usize,
}

impl Scratch {
    /// Starts the count of another decode.
    pub(crate) fn begin(&mut self) {
        self.used_last = 0;
    }

    /// `len` bytes with unspecified content.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn take(&mut self, len: usize) -> Result<&mut [u8], DecodeError> {
        if let Some(more) = len.checked_sub(self.bytes.len()) {
            self.bytes.try_reserve_exact(more).map_err(|_| DecodeError::NoMemory)?;
            self.bytes.resize(len, 0);
        }
        self.used_last = self.used_last.max(len);
        self.used_max = self.used_max.max(len);
        Ok(&mut self.bytes[..len])
    }

    /// The size of the memory in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn used_last(&self) -> usize {
        self.used_last
    }

    pub(crate) fn used_max(&self) -> usize {
        self.used_max
    }
}
