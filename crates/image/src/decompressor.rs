//! Decoding of stored bytes.

use std::{borrow::Cow, fmt};

use crate::{DecodedLen, Encoding, Error, Place};

/// Decodes every [`Encoding`]. Implementations keep working state that they reuse from block to block, so each thread
/// has its own.
pub trait Decompressor: Send {
    /// Decodes `stored`, the stored bytes of one block without their length prefix. Skips the first `skip` decoded
    /// bytes, writes the following ones to `output`, and returns how many bytes it wrote.
    ///
    /// The result is shorter than `output` only if `decoded_len` is [`DecodedLen::AtMost`] and the block ends. The
    /// decoder stops as early as the codec allows. With [`DecodedLen::Exact`] and `skip + output.len()` equal to it, a
    /// block that decodes to any other length is an error.
    ///
    /// # Errors
    /// The bytes are not valid in this encoding, decode to another length, or require more memory than the encoding
    /// allows.
    fn decode(
        &mut self,
        encoding: &Encoding,
        decoded_len: DecodedLen,
        stored: &[u8],
        skip: usize,
        output: &mut [u8],
    ) -> Result<usize, DecodeError>;

    /// Decodes the last `stored_len` bytes of `buffer` into its first `decoded_len` bytes, without an intermediate
    /// copy. Returns `false` and leaves `buffer` unchanged if that is not safe: the codec does not support it, or the
    /// buffer lacks [`Decompressor::in_place_margin`].
    ///
    /// # Errors
    /// As for [`Decompressor::decode`]; the contents of `buffer` are then unspecified.
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

    /// How much longer than the decoded data a buffer must be for a block of `stored_len` bytes at its end to be
    /// decoded in place, or `None` if the codec cannot decode in place.
    fn in_place_margin(&self, encoding: &Encoding, stored_len: usize) -> Option<usize> {
        let _ = (encoding, stored_len);
        None
    }
}

/// The reason for which a block could not be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes violate a rule of the codec, or decode to the wrong length.
    Corrupt(&'static str),
    /// The codec is not compiled in, or the stream uses an option that Floe does not accept.
    Unsupported(Cow<'static, str>),
    /// The codec could not allocate its working memory.
    NoMemory,
}

impl DecodeError {
    /// The error of the block at `place`.
    pub fn at(self, place: Place) -> Error {
        match self {
            Self::Corrupt(rule) => Error::corrupt(rule, place),
            Self::Unsupported(feature) => Error::unsupported(feature),
            Self::NoMemory => Error::NoMemory,
        }
    }
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
