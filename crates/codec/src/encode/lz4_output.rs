//! Finds the sequences of an LZ4 block, and writes them into a buffer of fixed size.

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

const HASH_LOG2: u32 = 15;
/// The number of positions in the chains, more than the largest window.
const CHAIN_LEN: usize = 1 << 16;
/// Positions continue to increase from block to block, so that the tables need not be cleared. They are cleared when
/// the origin exceeds this.
const ORIGIN_MAX: u32 = 1 << 30;

/// Chains of positions of one input.
pub(super) struct MatchChains {
    /// The origin plus the last position of each hash. Values below the origin belong to earlier inputs.
    heads: Vec<u32>,
    /// The distance from each recent position to the previous one with the same hash.
    steps: Vec<u16>,
    origin: u32,
    next: usize,
    window: usize,
    attempts_max: usize,
}

impl MatchChains {
    /// Creates chains for matches at most `window` bytes back, with at most `attempts_max` candidates for each match.
    pub(super) fn new(window: usize, attempts_max: usize) -> Self {
        let heads = vec![0; 1 << HASH_LOG2];
        Self { heads, steps: vec![0; CHAIN_LEN], origin: 1, next: 0, window, attempts_max }
    }

    /// Starts a new input. All inserted positions of the previous one become invalid.
    pub(super) fn restart(&mut self) {
        let passed = u32::try_from(self.next).unwrap_or(ORIGIN_MAX);
        self.origin = self.origin.saturating_add(passed);
        self.next = 0;
        if self.origin >= ORIGIN_MAX {
            self.heads.fill(0);
            self.origin = 1;
        }
    }

    /// Finds the longest match at `position` that is longer than `len_floor` and at most `limit - position` bytes long.
    /// Inserts all positions before `position` first. At least 4 bytes must follow `position`.
    pub(super) fn longest(&mut self, input: &[u8], position: usize, limit: usize, len_floor: usize) -> Option<Match> {
        self.insert_before(input, position);
        let wanted = &input[position..limit];
        let (first, origin) = (word(input, position), self.origin);
        let mut candidate = self.heads[hash(first)].checked_sub(origin)? as usize;
        let mut best = Match { len: len_floor.max(MATCH_LEN_MIN - 1), distance: 0 };
        if best.len >= wanted.len() {
            return None;
        }
        for _ in 0..self.attempts_max {
            if position - candidate > self.window {
                break;
            }
            if input[candidate + best.len] == wanted[best.len] && word(input, candidate) == first {
                let len = common_len(&input[candidate..], wanted);
                if len > best.len {
                    best = Match { len, distance: position - candidate };
                    if len == wanted.len() {
                        break;
                    }
                }
            }
            let step = usize::from(self.steps[candidate % CHAIN_LEN]);
            if step == 0 || step > candidate {
                break;
            }
            candidate -= step;
        }
        (best.distance > 0).then_some(best)
    }

    fn insert_before(&mut self, input: &[u8], end: usize) {
        while self.next < end {
            let head = &mut self.heads[hash(word(input, self.next))];
            let step = match head.checked_sub(self.origin) {
                Some(before) => u16::try_from(self.next - before as usize).unwrap_or(0),
                None => 0,
            };
            self.steps[self.next % CHAIN_LEN] = step;
            *head = self.origin + self.next as u32;
            self.next += 1;
        }
    }
}

/// Reads the four bytes at `position`.
pub(super) fn word(input: &[u8], position: usize) -> u32 {
    let bytes = input[position..position + 4].first_chunk().copied();
    u32::from_le_bytes(bytes.unwrap_or_default())
}

/// The number of equal bytes at the beginning of `left` and `right`. `left` must not be the shorter one.
pub(super) fn common_len(left: &[u8], right: &[u8]) -> usize {
    let mut len = 0;
    for (left, right) in left.chunks_exact(8).zip(right.chunks_exact(8)) {
        let (left, right) = (first_eight(left), first_eight(right));
        if left != right {
            return len + ((left ^ right).trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + left[len..].iter().zip(&right[len..]).take_while(|(left, right)| left == right).count()
}

fn first_eight(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
}

fn hash(word: u32) -> usize {
    (word.wrapping_mul(2_654_435_761) >> (32 - HASH_LOG2)) as usize
}
