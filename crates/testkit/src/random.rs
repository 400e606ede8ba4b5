//! A small pseudo-random number generator with the same output on every machine.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// `len` incompressible bytes.
    pub fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// `len` bytes that compress like source code: words from a small vocabulary, repeated lines, some numbers.
    pub fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 24] = [
            "block", "page", "extent", "inode", "reader", "river", "ice", "melt", "spring", "north", "return", "let",
            "match", "while", "stream", "window", "drift", "snow", "if", "else", "sector", "harbour", "tide", "flow",
        ];
        let mut bytes = Vec::with_capacity(len + 64);
        let mut line_start = 0;
        while bytes.len() < len {
            match self.below(16) {
                0 => bytes.extend_from_slice(self.below(1_000_000).to_string().as_bytes()),
                1 if line_start > 0 => {
                    let from = self.below(line_start as u64) as usize;
                    let to = (from + 16 + self.below(80) as usize).min(line_start);
                    bytes.extend_from_within(from..to);
                }
                2 | 3 => {
                    bytes.push(b'\n');
                    line_start = bytes.len();
                }
                _ => bytes.extend_from_slice(WORDS[self.below(WORDS.len() as u64) as usize].as_bytes()),
            }
            bytes.push(b' ');
        }
        bytes.truncate(len);
        bytes
    }
}
