//! LZ4 with a configurable window, which liblz4 fixes at compile time.
//!
//! A decoder needs to keep only a window of earlier output, so a small window bounds the temporary pages of decoding.
//! The thorough method searches for the cheapest encoding of the input instead of the longest matches, which
//! compensates for the matches that are out of reach.

use std::num::NonZeroU32;

use super::{
    EncodeError, Encoder, Fit,
    lz4_output::{
        LAST_LITERALS, MATCH_LEN_MIN, MATCH_START_MARGIN, Match, MatchChains, SequenceWriter, common_len, length_bytes,
        word,
    },
};

/// The number of positions that are optimised together.
const PLAN_LEN: usize = 4096;
/// log2 of the size of the fast method's table of last positions.
const FAST_HASH_LOG2: u32 = 13;
/// log2 of the number of failures after which the fast method's step grows by one byte.
const FAST_SKIP_LOG2: u32 = 6;

/// LZ4 with a configurable window.
pub struct Lz4WindowEncoder {
    window: usize,
    method: Method,
}

enum Method {
    Fast { last: Vec<u32> },
    High { chains: MatchChains, plan: Plan, len_enough: usize },
}

impl Lz4WindowEncoder {
    /// Creates an encoder with the fast method.
    pub fn fast(window_bytes: NonZeroU32) -> Self {
        Self { window: window_of(window_bytes), method: Method::Fast { last: vec![0; 1 << FAST_HASH_LOG2] } }
    }

    /// Creates an encoder with the thorough method, of level 1 to 12.
    ///
    /// # Errors
    /// The level is out of range.
    pub fn high(level: u8, window_bytes: NonZeroU32) -> Result<Self, EncodeError> {
        let (attempts_max, len_enough) = match level {
            1..=3 => (4, 32),
            4..=9 => (1 << (level - 2), 64),
            10 => (192, 128),
            11 => (512, 256),
            12 => (16384, 4096),
            _ => return Err(EncodeError::Setting("lz4hc level must be 1 to 12")),
        };
        let window = window_of(window_bytes);
        let chains = MatchChains::new(window, attempts_max);
        Ok(Self { window, method: Method::High { chains, plan: Plan::new(), len_enough } })
    }
}

impl Encoder for Lz4WindowEncoder {
    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        // LZ4 compresses by at most a factor of 255.
        let input = &input[..input.len().min(output.len().saturating_mul(255).max(64))];
        let mut writer = SequenceWriter::new(input, output);
        if input.len() > MATCH_START_MARGIN {
            match &mut self.method {
                Method::Fast { last } => write_fast(input, self.window, last, &mut writer),
                Method::High { chains, plan, len_enough } => {
                    chains.restart();
                    plan.write(input, chains, *len_enough, &mut writer);
                }
            }
        }
        Ok(writer.finish())
    }
}

fn window_of(window_bytes: NonZeroU32) -> usize {
    usize::try_from(window_bytes.get()).unwrap_or(usize::MAX).min(usize::from(u16::MAX))
}

/// Writes the first match found at each position, like liblz4's fast method.
fn write_fast(input: &[u8], window: usize, last: &mut [u32], writer: &mut SequenceWriter<'_>) {
    last.fill(0);
    let start_limit = input.len() - MATCH_START_MARGIN;
    let end_limit = input.len() - LAST_LITERALS;
    let hash = |position| (word(input, position).wrapping_mul(2_654_435_761) >> (32 - FAST_HASH_LOG2)) as usize;
    let (mut position, mut failures) = (0, 1 << FAST_SKIP_LOG2);
    while position <= start_limit {
        let entry = &mut last[hash(position)];
        // Entries contain the position plus one.
        let candidate = std::mem::replace(entry, position as u32 + 1).checked_sub(1).map(|entry| entry as usize);
        let near = candidate
            .filter(|candidate| position - candidate <= window && word(input, *candidate) == word(input, position));
        let Some(mut candidate) = near else {
            position += failures >> FAST_SKIP_LOG2;
            failures += 1;
            continue;
        };
        let mut start = position;
        while start > writer.anchor() && candidate > 0 && input[start - 1] == input[candidate - 1] {
            (start, candidate) = (start - 1, candidate - 1);
        }
        let len = common_len(&input[candidate..], &input[start..end_limit]);
        if len < MATCH_LEN_MIN {
            position += 1;
            continue;
        }
        if !writer.write_match(start, Match { len, distance: start - candidate }) {
            return;
        }
        position = start + len;
        if position <= start_limit {
            last[hash(position - 2)] = position as u32 - 1;
        }
        failures = 1 << FAST_SKIP_LOG2;
    }
}

/// The cheapest known way to reach a position: its cost, and its last step.
#[derive(Clone, Copy, Default)]
struct Step {
    cost: u32,
    /// The number of literals that end here.
    literals_len: u32,
    /// The match that ends here, or a match of length 0 if a literal ends here.
    found: Match,
}

/// Finds the cheapest sequences for a stretch of input by dynamic programming.
struct Plan {
    steps: Vec<Step>,
    /// The matches on the cheapest way, in reverse order.
    way: Vec<(usize, Match)>,
}

impl Plan {
    fn new() -> Self {
        Self { steps: vec![Step::default(); PLAN_LEN + 1], way: Vec::new() }
    }

    fn write(&mut self, input: &[u8], chains: &mut MatchChains, len_enough: usize, writer: &mut SequenceWriter<'_>) {
        let start_limit = input.len() - MATCH_START_MARGIN;
        let end_limit = input.len() - LAST_LITERALS;
        let mut begin = 0;
        while begin <= start_limit {
            // Without a match there is no choice.
            let Some(first) = chains.longest(input, begin, end_limit, 0) else {
                begin += 1;
                continue;
            };
            let literals_len = begin - writer.anchor();
            let (len, long) = self.weigh(input, chains, begin, literals_len, first, len_enough, start_limit, end_limit);
            self.trace(begin, len);
            for &(start, found) in self.way.iter().rev() {
                if !writer.write_match(start, found) {
                    return;
                }
            }
            begin += len;
            if let Some(long) = long {
                if !writer.write_match(begin, long) {
                    return;
                }
                begin += long.len;
            }
        }
    }

    /// Computes the cheapest ways from `begin` on. Returns the length of the stretch, and a match at its end that is so
    /// long that it is taken without comparison.
    #[allow(clippy::too_many_arguments)]
    fn weigh(
        &mut self,
        input: &[u8],
        chains: &mut MatchChains,
        begin: usize,
        literals_len: usize,
        first: Match,
        len_enough: usize,
        start_limit: usize,
        end_limit: usize,
    ) -> (usize, Option<Match>) {
        if first.len >= len_enough {
            return (0, Some(first));
        }
        let literals_len = u32::try_from(literals_len).unwrap_or(u32::MAX);
        self.steps[0] = Step { cost: 0, literals_len, found: Match::default() };
        // Positions up to here have a cost.
        let mut reached = 0;
        let mut at = 0;
        loop {
            let position = begin + at;
            let step = self.steps[at];
            self.reach(
                &mut reached,
                at + 1,
                Step {
                    cost: step.cost + 1 + literal_length_step(step.literals_len),
                    literals_len: step.literals_len + 1,
                    found: Match::default(),
                },
            );
            // Inside a match that saves bytes, another match is not worth a search.
            let inside = at > 0 && self.steps[at + 1].cost <= step.cost;
            let found = if at == 0 {
                Some(first)
            } else if inside || position > start_limit {
                None
            } else {
                chains.longest(input, position, end_limit, 0)
            };
            if let Some(found) = found {
                if found.len >= len_enough || at + found.len > PLAN_LEN {
                    return (at, Some(found));
                }
                for len in MATCH_LEN_MIN..=found.len {
                    let cost = step.cost + 3 + length_bytes(len - MATCH_LEN_MIN) as u32;
                    let found = Match { len, ..found };
                    self.reach(&mut reached, at + len, Step { cost, literals_len: 0, found });
                }
            }
            at += 1;
            if at == reached || at == PLAN_LEN {
                // All ways meet at this position.
                return (at, None);
            }
        }
    }

    fn reach(&mut self, reached: &mut usize, at: usize, step: Step) {
        while *reached < at {
            *reached += 1;
            self.steps[*reached].cost = u32::MAX;
        }
        if step.cost < self.steps[at].cost {
            self.steps[at] = step;
        }
    }

    /// Collects the matches on the cheapest way to the position `len` bytes after `begin`.
    fn trace(&mut self, begin: usize, len: usize) {
        self.way.clear();
        let mut at = len;
        while at > 0 {
            let found = self.steps[at].found;
            if found.len == 0 {
                at -= 1;
            } else {
                at -= found.len;
                self.way.push((begin + at, found));
            }
        }
    }
}

/// The cost of the length bytes that one more literal adds.
fn literal_length_step(literals_len: u32) -> u32 {
    let len = literals_len as usize;
    (length_bytes(len + 1) - length_bytes(len)) as u32
}
