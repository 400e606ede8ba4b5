//! Parts of LZ4 blocks, decoded without keeping what precedes them.
//!
//! liblz4 decodes only into one run of memory that holds the block from its beginning. To read the end of a large block
//! that way costs memory for all of it. A match reaches back no farther than the window, though, so this decoder keeps
//! that much of what is skipped, in a ring. Of blocks that liblz4 takes it gives the same bytes (it is tested against
//! it), but for two things that it refuses: a match distance of zero, which liblz4 reads as zeros, and one above the
//! window, which liblz4 does not know.

use floe_image::DecodeError;

use crate::{
    lz4_ring::Decoded,
    request::{ENDS_EARLY, HOLDS_MORE},
};

const CUT: DecodeError = DecodeError::Corrupt("LZ4 sequence past the end of its block");
const DISTANCE_ZERO: DecodeError = DecodeError::Corrupt("LZ4 match distance of zero");
const BEFORE_BEGINNING: DecodeError = DecodeError::Corrupt("LZ4 match before the beginning of its block");
const PAST_WINDOW: DecodeError = DecodeError::Corrupt("LZ4 match farther back than the window");
const END_RULE: DecodeError = DecodeError::Corrupt("LZ4 block that does not end in literals");

/// The shortest match, in bytes.
const MATCH_LEN_MIN: usize = 4;
/// A nibble with this value goes on in further bytes.
const NIBBLE_MAX: usize = 15;
/// How many bytes at the end of a block are literals at least.
const LAST_LITERALS: usize = 5;
/// How many bytes before the end of a block its last match begins at least.
const LAST_MATCH_DISTANCE: usize = 12;

/// The bytes of a block from some point on.
pub(crate) struct Part<'a> {
    /// How many bytes precede them.
    pub(crate) skip: usize,
    /// Where they go.
    pub(crate) output: &'a mut [u8],
    /// The farthest a match may reach back, in bytes.
    pub(crate) window_bytes: usize,
    /// Whether the block must end with `output` at the latest.
    pub(crate) ends_with_block: bool,
}

impl Part<'_> {
    /// How many bytes of memory [`Part::decode`] needs.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.skip.min(self.window_bytes.max(1))
    }

    /// Decodes them with the help of `ring`, which is [`Part::ring_bytes`] long, and gives how many there were.
    ///
    /// # Errors
    /// The block is malformed, or ends later than it must.
    pub(crate) fn decode(self, stored: &[u8], ring: &mut [u8]) -> Result<usize, DecodeError> {
        debug_assert_eq!(ring.len(), self.ring_bytes());
        let end = self.skip + self.output.len();
        let mut decoded = Decoded::new(ring, self.skip, self.output);
        let mut input = Input { rest: stored };
        loop {
            let token = usize::from(input.byte().ok_or(ENDS_EARLY)?);
            let literals_len = input.len(token >> 4)?;
            let literals_end = decoded.len().saturating_add(literals_len);
            if self.ends_with_block {
                let is_last =
                    literals_end.saturating_add(LAST_MATCH_DISTANCE) > end || literals_len >= input.rest.len();
                if is_last {
                    if literals_end > end {
                        return Err(HOLDS_MORE);
                    }
                    if literals_len != input.rest.len() {
                        return Err(if literals_len > input.rest.len() { CUT } else { END_RULE });
                    }
                    decoded.put(input.rest);
                    return Ok(decoded.len().saturating_sub(self.skip));
                }
            } else if literals_end >= end {
                let len = end - decoded.len();
                decoded.put(input.rest.get(..len).ok_or(CUT)?);
                return Ok(end - self.skip);
            }
            let ahead = input.rest;
            input.take(literals_len).ok_or(CUT)?;
            decoded.put_ahead(literals_len, ahead);

            let Some(distance) = input.distance() else {
                // A block of unknown length may end here; whether it did is for the caller to judge.
                return if input.rest.is_empty() { Ok(decoded.len().saturating_sub(self.skip)) } else { Err(CUT) };
            };
            match distance {
                0 => return Err(DISTANCE_ZERO),
                _ if distance > decoded.len() => return Err(BEFORE_BEGINNING),
                _ if distance > self.window_bytes => return Err(PAST_WINDOW),
                _ => {}
            }
            let match_len = input.len(token & NIBBLE_MAX)?.saturating_add(MATCH_LEN_MIN);
            let match_end = decoded.len().saturating_add(match_len);
            if self.ends_with_block {
                if match_end.saturating_add(LAST_LITERALS) > end {
                    return Err(END_RULE);
                }
            } else if match_end >= end {
                decoded.repeat(distance, end - decoded.len());
                return Ok(end - self.skip);
            }
            decoded.repeat(distance, match_len);
        }
    }
}

/// The stored bytes that are not decoded yet.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    fn distance(&mut self) -> Option<usize> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    }

    /// A length that begins with a nibble of the token.
    #[inline]
    fn len(&mut self, nibble: usize) -> Result<usize, DecodeError> {
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
