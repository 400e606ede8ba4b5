//! Finds matches within a window, by chains of positions with the same hash.

use super::lz4_output::{MATCH_LEN_MIN, Match};

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
