//! Writes the sequences of an LZ4 block into a buffer of fixed size.

use super::Fit;

/// The shortest match, in bytes.
pub(super) const MATCH_LEN_MIN: usize = 4;
/// The least number of literals at the end of a block, in bytes.
pub(super) const LAST_LITERALS: usize = 5;
/// The least distance between the start of the last match and the end of the block, in bytes.
pub(super) const MATCH_START_MARGIN: usize = 12;
/// The room reserved after each match: the token and the literals that keep the end of the block far enough from the
/// start of the match.
const END_ROOM: usize = 1 + MATCH_START_MARGIN - MATCH_LEN_MIN;

/// An LZ4 match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Match {
    /// The length of the match in bytes.
    pub(super) len: usize,
    /// The distance back to the earlier occurrence, in bytes.
    pub(super) distance: usize,
}

/// Writes sequences until one does not fit.
pub(super) struct SequenceWriter<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    produced: usize,
    /// The position of the first input byte that is not written yet.
    anchor: usize,
}

impl<'a> SequenceWriter<'a> {
    pub(super) fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output, produced: 0, anchor: 0 }
    }

    /// The position of the first input byte that is not written yet.
    pub(super) fn anchor(&self) -> usize {
        self.anchor
    }

    /// Writes the literals up to `start` and the match there. If the match does not fit, it is shortened; if that is
    /// not enough, nothing is written. Returns whether the whole match was written.
    pub(super) fn write_match(&mut self, start: usize, found: Match) -> bool {
        let literals = &self.input[self.anchor..start];
        let fixed = 1 + literals.len() + length_bytes(literals.len()) + 2 + END_ROOM;
        let Some(room) = (self.output.len() - self.produced).checked_sub(fixed) else { return false };
        // A match that is too long for the room is shortened.
        let mut extra = found.len - MATCH_LEN_MIN;
        if length_bytes(extra) > room {
            if room == 0 {
                extra = 14;
            } else {
                extra = 15 + room * 255 - 1;
            }
        }
        self.write_token(literals.len(), extra);
        self.write_literals(literals);
        let distance = u16::try_from(found.distance).unwrap_or(u16::MAX).to_le_bytes();
        self.output[self.produced..self.produced + 2].copy_from_slice(&distance);
        self.produced += 2;
        self.write_length(extra);
        self.anchor = start + MATCH_LEN_MIN + extra;
        extra + MATCH_LEN_MIN == found.len
    }

    /// Writes the remaining input as literals, as much as fits.
    pub(super) fn finish(mut self) -> Fit {
        let rest = self.input.len() - self.anchor;
        let room = (self.output.len() - self.produced).saturating_sub(1);
        let mut len = rest.min(room);
        while len + length_bytes(len) > room {
            len -= 1;
        }
        let literals = &self.input[self.anchor..self.anchor + len];
        if self.anchor + len == 0 {
            return Fit::default();
        }
        self.write_token(literals.len(), 0);
        self.write_literals(literals);
        Fit { consumed: self.anchor + len, produced: self.produced }
    }

    fn write_token(&mut self, literals_len: usize, match_extra: usize) {
        let nibble = |len: usize| u8::try_from(len.min(15)).unwrap_or(15);
        self.output[self.produced] = nibble(literals_len) << 4 | nibble(match_extra);
        self.produced += 1;
    }

    fn write_literals(&mut self, literals: &[u8]) {
        self.write_length(literals.len());
        self.output[self.produced..self.produced + literals.len()].copy_from_slice(literals);
        self.produced += literals.len();
    }

    /// Writes the part of a length that does not fit into the token.
    fn write_length(&mut self, len: usize) {
        if let Some(mut rest) = len.checked_sub(15) {
            while rest >= 255 {
                self.output[self.produced] = 255;
                self.produced += 1;
                rest -= 255;
            }
            self.output[self.produced] = u8::try_from(rest).unwrap_or(255);
            self.produced += 1;
        }
    }
}

/// The number of bytes after the token that a length takes.
pub(super) const fn length_bytes(len: usize) -> usize {
    if len < 15 { 0 } else { (len - 15) / 255 + 1 }
}
