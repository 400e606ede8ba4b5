//! How stored bytes become data.

use std::{borrow::Cow, fmt};

use crate::{DecodedLen, Encoding};

/// A decoder of every [`Encoding`]. It holds working state that is reused from block to block, so each thread has its
/// own.
pub trait Decompressor: Send {
    /// Decodes `stored`, the stored bytes of one block (without a length prefix), drops the first `skip` decoded bytes
    /// and puts the following ones into `output`; gives how many it put there.
    ///
    /// Fewer than `output.len()` only where `decoded_len` is [`DecodedLen::AtMost`] and the block ends. No more is
    /// decoded than is asked for, as far as the codec allows it. With [`DecodedLen::Exact`] and `skip + output.len()`
    /// equal to it, a block that holds less or more is an error.
    ///
    /// # Errors
    /// The bytes are not what the encoding says, decode to another length, or ask for more memory than it allows.
    fn decode(
        &mut self,
        encoding: &Encoding,
        decoded_len: DecodedLen,
        stored: &[u8],
        skip: usize,
        output: &mut [u8],
    ) -> Result<usize, DecodeError>;

    /// Decodes the last `stored_len` bytes of `buffer` into its first `decoded_len` bytes, without a copy of them in
    /// between where that is safe. Returns `false`, with `buffer` unchanged, where it is not: the codec cannot, or
    /// [`Decompressor::in_place_margin`] is not met.
    ///
    /// # Errors
    /// As [`Decompressor::decode`]; `buffer` then holds anything.
    fn decode_in_place(
        &mut self,
        encoding: &Encoding,
        decoded_len: usize,
        stored_len: usize,
        buffer: &mut [u8],
    ) -> Result<bool, DecodeError> {
        let _ = (encoding, decoded_len, stored_len, buffer);
        Ok(false)
    }

    /// How many bytes longer than the decoded data a buffer must be, so that a block of `stored_len` stored bytes at
    /// its end can be decoded over itself; `None` where the codec cannot do that at all.
    fn in_place_margin(&self, encoding: &Encoding, stored_len: usize) -> Option<usize> {
        let _ = (encoding, stored_len);
        None
    }
}

/// Why a block could not be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes break a rule of the codec, or decode to another length than they should.
    Corrupt(&'static str),
    /// The codec is not built in, or the stream uses an option that is not allowed here.
    Unsupported(Cow<'static, str>),
    /// The codec could not get its working memory.
    NoMemory,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(rule) => formatter.write_str(rule),
            Self::Unsupported(feature) => write!(formatter, "not supported: {feature}"),
            Self::NoMemory => formatter.write_str("no memory for the decoder"),
        }
    }
}

impl std::error::Error for DecodeError {}
