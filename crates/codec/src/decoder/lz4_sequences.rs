//! The sequences that an LZ4 block consists of: a token, literals, and a match.

use floe_image::DecodeError;

pub(crate) const CUT: DecodeError = DecodeError::Corrupt("LZ4 sequence past the end of its block");
pub(crate) const DISTANCE_ZERO: DecodeError = DecodeError::Corrupt("LZ4 match distance of zero");

/// The shortest match, in bytes.
pub(crate) const MATCH_LEN_MIN: usize = 4;
/// A nibble with this value is continued in further bytes.
pub(crate) const NIBBLE_MAX: usize = 15;

/// The stored bytes of a block that are not consumed yet.
pub(crate) struct Sequences<'a> {
    rest: &'a [u8],
}

impl<'a> Sequences<'a> {
    pub(crate) fn new(stored: &'a [u8]) -> Self {
        Self { rest: stored }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    pub(crate) fn distance(&mut self) -> Option<usize> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    }

    /// Reads a length that begins with a nibble of the token.
    #[inline]
    pub(crate) fn len(&mut self, nibble: usize) -> Result<usize, DecodeError> {
        let mut len = nibble;
        if nibble == NIBBLE_MAX {
            loop {
                let byte = self.byte().ok_or(CUT)?;
                len = len.saturating_add(usize::from(byte));
                if byte != u8::MAX {
                    break;
                }
            }
        }
        Ok(len)
    }
}

/// Refuses the fault that liblz4 accepts but the windowed decoder does not: a match distance of zero, in the sequences of
/// the first `end` decoded bytes.
///
/// # Errors
/// A match has a distance of zero, or a length is cut off.
pub(crate) fn refuse_zero_distances(stored: &[u8], end: usize) -> Result<(), DecodeError> {
    let mut sequences = Sequences::new(stored);
    let mut decoded_len = 0_usize;
    while let Some(token) = sequences.byte().map(usize::from) {
        let literals_len = sequences.len(token >> 4)?;
        decoded_len = decoded_len.saturating_add(literals_len);
        if decoded_len >= end || sequences.take(literals_len).is_none() {
            break;
        }
        match sequences.distance() {
            Some(0) => return Err(DISTANCE_ZERO),
            Some(_) => {}
            None => break,
        }
        let match_len = sequences.len(token & NIBBLE_MAX)?.saturating_add(MATCH_LEN_MIN);
        decoded_len = decoded_len.saturating_add(match_len);
        if decoded_len >= end {
            break;
        }
    }
    Ok(())
}
