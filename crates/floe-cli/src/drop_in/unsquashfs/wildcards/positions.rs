//! Positions in a name.

/// A set of positions in a name: 0 is before its first byte.
#[derive(Clone)]
pub(super) struct Positions {
    /// A bit for each position.
    words: Vec<u64>,
}

impl Positions {
    pub(super) fn none(name: &[u8]) -> Self {
        Self { words: vec![0; name.len() / 64 + 1] }
    }

    pub(super) fn only(name: &[u8], position: usize) -> Self {
        let mut positions = Self::none(name);
        positions.insert(position);
        positions
    }

    /// All positions from `start` to the end of the name.
    pub(super) fn from(name: &[u8], start: usize) -> Self {
        let mut positions = Self::none(name);
        (start..=name.len()).for_each(|position| positions.insert(position));
        positions
    }

    pub(super) fn insert(&mut self, position: usize) {
        self.words[position / 64] |= 1 << (position % 64);
    }

    pub(super) fn contains(&self, position: usize) -> bool {
        self.words[position / 64] >> (position % 64) & 1 != 0
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub(super) fn remove(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }

    /// The first position.
    pub(super) fn first(&self) -> Option<usize> {
        let index = self.words.iter().position(|word| *word != 0)?;
        Some(index * 64 + self.words[index].trailing_zeros() as usize)
    }

    pub(super) fn pop_first(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.words[first / 64] &= !(1 << (first % 64));
        Some(first)
    }
}
