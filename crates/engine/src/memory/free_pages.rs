//! The free pages of an arena.

/// A bitmap of free pages. It gives out contiguous runs, the lowest that fits first.
#[derive(Debug)]
pub(crate) struct FreePages {
    /// One bit for each page, set if the page is free.
    words: Vec<u64>,
    free_count: usize,
    /// All words before this one are zero.
    first_word: usize,
}

impl FreePages {
    pub(crate) fn new(page_count: usize) -> Self {
        let mut words = vec![u64::MAX; page_count / 64];
        if !page_count.is_multiple_of(64) {
            words.push((1 << (page_count % 64)) - 1);
        }
        Self { words, free_count: page_count, first_word: 0 }
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free_count
    }

    /// Takes `count` contiguous pages. Returns the first, or `None` if no free run is long enough.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        if count == 0 || count > self.free_count {
            return None;
        }
        let first = self.find(count)?;
        self.set(first, count, false);
        self.free_count -= count;
        while self.words.get(self.first_word) == Some(&0) {
            self.first_word += 1;
        }
        Some(first)
    }

    /// The runs of free pages within each word, as first page and length.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                let len = rest.checked_shr(bit)?.trailing_ones();
                rest &= !(u64::MAX.checked_shr(64 - len)? << bit);
                Some((index * 64 + bit as usize, len as usize))
            })
        })
    }

    /// Whether all of these pages are free.
    pub(crate) fn is_free(&self, first: usize, count: usize) -> bool {
        (first..first + count).all(|page| self.words[page / 64] >> (page % 64) & 1 == 1)
    }

    /// Frees pages.
    pub(crate) fn release(&mut self, first: usize, count: usize) {
        self.set(first, count, true);
        self.free_count += count;
        self.first_word = self.first_word.min(first / 64);
    }

    fn find(&self, count: usize) -> Option<usize> {
        // The number of free pages directly before the word.
        let mut run_len = 0;
        for (index, &word) in self.words.iter().enumerate().skip(self.first_word) {
            let base = index * 64;
            let ones = word.trailing_ones() as usize;
            if run_len + ones >= count {
                return Some(base - run_len);
            }
            if ones == 64 {
                run_len += 64;
                continue;
            }
            let starts = if count < 64 { run_starts(word, count as u32) } else { 0 };
            if starts != 0 {
                return Some(base + starts.trailing_zeros() as usize);
            }
            run_len = word.leading_ones() as usize;
        }
        None
    }

    fn set(&mut self, first: usize, count: usize, free: bool) {
        let mut page = first;
        let end = first + count;
        while page < end {
            let bit = page % 64;
            let len = (64 - bit).min(end - page);
            let mask = if len == 64 { u64::MAX } else { ((1 << len) - 1) << bit };
            let word = &mut self.words[page / 64];
            debug_assert_eq!(*word & mask, if free { 0 } else { mask }, "pages change hands once");
            if free {
                *word |= mask;
            } else {
                *word &= !mask;
            }
            page += len;
        }
    }
}

/// The bits of `word` at which `count` or more consecutive bits are set; `count` is at least one.
fn run_starts(word: u64, count: u32) -> u64 {
    let mut starts = word;
    let mut len = 1;
    while len < count && starts != 0 {
        let step = len.min(count - len);
        starts &= starts >> step;
        len += step;
    }
    starts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::FreePages;

    #[test]
    fn runs_cross_words() {
        let mut pages = FreePages::new(200);
        assert_eq!(pages.take(60), Some(0));
        assert_eq!(pages.take(100), Some(60));
        assert_eq!(pages.take(41), None);
        assert_eq!(pages.take(40), Some(160));
        assert_eq!(pages.take(1), None);
        pages.release(30, 50);
        assert_eq!(pages.runs().collect::<Vec<_>>(), [(30, 34), (64, 16)]);
        assert_eq!(pages.take(51), None);
        assert_eq!(pages.take(50), Some(30));
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_nothing_is_lost(page_count in 1usize..400, steps in prop::collection::vec((any::<bool>(), 1usize..80), 0..200)) {
            let mut pages = FreePages::new(page_count);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (take, number) in steps {
                if take {
                    match pages.take(number) {
                        Some(first) => {
                            prop_assert!(first + number <= page_count);
                            prop_assert!(taken.iter().all(|&(start, len)| first + number <= start || start + len <= first));
                            taken.push((first, number));
                        }
                        None => {
                            let mut used = vec![false; page_count];
                            taken.iter().for_each(|&(start, len)| used[start..start + len].fill(true));
                            prop_assert!(!used.windows(number).any(|window| window.iter().all(|page| !page)));
                        }
                    }
                } else if !taken.is_empty() {
                    let (first, count) = taken.swap_remove(number % taken.len());
                    pages.release(first, count);
                }
                prop_assert_eq!(pages.free_count() + taken.iter().map(|&(_, len)| len).sum::<usize>(), page_count);
            }
        }
    }
}
