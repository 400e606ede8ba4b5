//! Content-defined splitting: equal data is split at the same positions wherever it occurs.
//!
//! The technique is known as content-defined chunking. EROFS uses "chunk" for something else, so the resulting units
//! are called grains.

use xxhash_rust::xxh64::xxh64;

/// The window of the rolling hash in bytes: each byte shifts the hash by one bit.
const WINDOW_LEN: usize = 64;
/// The minimum length of a grain is one part in this many of the average.
const MIN_PARTS: usize = 8;
/// The maximum length of a grain is this many times the average.
const MAX_FACTOR: usize = 32;

/// The random number of each byte value for the rolling hash.
const GEAR: [u64; 256] = gear();

/// A run of content between two content-defined boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grain {
    /// The length in bytes.
    pub(crate) len: usize,
    /// The hash of its bytes.
    pub(crate) hash: u64,
    /// Whether its end is content-defined. Data with a short period has no such boundaries.
    pub(crate) is_distinct: bool,
}

/// Splits content into grains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrainCutter {
    len_log2: u32,
}

impl GrainCutter {
    /// Creates a cutter for grains of about `1 << len_log2` bytes; the logarithm is 8 to 24.
    pub(crate) fn new(len_log2: u32) -> Self {
        Self { len_log2: len_log2.clamp(8, 24) }
    }

    /// The grains of `data` in order.
    pub(crate) fn cut<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = Grain> + 'a {
        let usual_len = 1usize << self.len_log2;
        let (min_len, max_len) = (usual_len / MIN_PARTS, usual_len * MAX_FACTOR);
        let end_below = 1u64 << (u64::BITS - self.len_log2);
        let mut rest = data;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (before, looked_at) = rest[..rest.len().min(max_len)].split_at(rest.len().min(min_len - 1));
            let window = &before[before.len() - before.len().min(WINDOW_LEN - 1)..];
            let mut rolling = window.iter().fold(0, |rolling, byte| roll(rolling, *byte));
            let end = looked_at.iter().position(|byte| {
                rolling = roll(rolling, *byte);
                rolling < end_below
            });
            let len = end.map_or(before.len() + looked_at.len(), |end| before.len() + end + 1);
            let (grain, after) = rest.split_at(len);
            rest = after;
            Some(Grain { len, hash: xxh64(grain, 0), is_distinct: end.is_some() })
        })
    }
}

const fn roll(rolling: u64, byte: u8) -> u64 {
    (rolling << 1).wrapping_add(GEAR[byte as usize])
}

const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    let mut state = 0u64;
    while index < table.len() {
        // SplitMix64, which distributes bits evenly enough.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn equal_data_is_cut_at_equal_positions() {
        let data = noise(1 << 20);
        let cutter = GrainCutter::new(11);
        let grains: Vec<Grain> = cutter.cut(&data).collect();
        assert_eq!(grains.iter().map(|grain| grain.len).sum::<usize>(), data.len());
        assert!((1 << 8..1 << 10).contains(&grains.len()), "{}", grains.len());
        for shift in [1, 63, 5000] {
            let shifted: Vec<Grain> = cutter.cut(&data[shift..]).collect();
            let common = shifted.iter().filter(|grain| grains.contains(grain)).count();
            assert!(common + 6 > shifted.len(), "{common} of {} after {shift}", shifted.len());
        }
    }

    #[test]
    fn uniform_data_is_not_distinct() {
        for data in [vec![0; 1 << 20], [1, 2, 3].repeat(1 << 18), Vec::new(), vec![5]] {
            assert!(GrainCutter::new(11).cut(&data).all(|grain| !grain.is_distinct));
        }
    }
}
