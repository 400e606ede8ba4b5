//! A set of numbers.

use std::collections::HashMap;

/// A set of numbers. 64 neighbours share an entry of 16 bytes.
#[derive(Default)]
pub(super) struct NumberSet {
    words: HashMap<u64, u64>,
}

impl NumberSet {
    /// Adds a number. Returns whether it is new.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let word = self.words.entry(number / 64).or_default();
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let mut set = NumberSet::default();
        let numbers = [0, 63, 64, 63, 0, u64::MAX, 1, u64::MAX];
        assert_eq!(numbers.map(|number| set.insert(number)), [true, true, true, false, false, true, true, false]);
    }
}
