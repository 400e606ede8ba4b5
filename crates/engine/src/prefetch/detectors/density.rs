//! The density of reads.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{metrics::moving_share::MovingShare, prefetch::thresholds::DENSITY_READS};

/// An entry of the table, from the high bits down: a hash of the window, the time of its last read in quarters of
/// `memory_reads`, whether the whole window was requested, and the number of reads.
const TIME_SHIFT: u32 = 8;
const HASH_SHIFT: u32 = 24;

/// The number of bits of a hash that choose the entry. The others tell windows with the same entry apart.
const INDEX_BITS: u32 = 16;
const TIME_MASK: u64 = (1 << (HASH_SHIFT - TIME_SHIFT)) - 1;
const ASKED: u64 = 1 << 7;
const READS_MAX: u64 = ASKED - 1;

/// Remembers which windows of files or sources were read recently, and measures the share of reads in such windows.
///
/// Windows with the same table entry disturb each other, and so do threads that update the same entry. This costs only speed.
pub(crate) struct Density {
    /// The number of reads after which a read is forgotten. The table has as many entries, of 8 bytes.
    memory_reads: u64,
    /// Allocated at the first read.
    entries: OnceLock<Box<[AtomicU64]>>,
    read_count: AtomicU64,
    /// The share of reads that are near others.
    near_share: MovingShare,
}

/// A window: the file or source that it belongs to, and its number there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) owner: u64,
    pub(crate) number: u64,
}

/// The state of the window that contains a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Visit {
    /// The number of recent reads in the window, including this one.
    pub(crate) reads: u64,
    /// Whether the whole window was requested.
    pub(crate) was_asked: bool,
}

impl Density {
    /// `memory_reads` is the number of reads after which a read is forgotten.
    pub(crate) fn new(memory_reads: u64) -> Self {
        debug_assert!((4..=1 << INDEX_BITS).contains(&memory_reads));
        let near_share = MovingShare::new(DENSITY_READS, MovingShare::WHOLE);
        Self { memory_reads, entries: OnceLock::new(), read_count: AtomicU64::new(0), near_share }
    }

    /// The share of recent reads that are near others, in units of 1 / [`MovingShare::WHOLE`].
    pub(crate) fn near_share(&self) -> u32 {
        self.near_share.get()
    }

    /// Notes a read in a window.
    pub(crate) fn note(&self, window: Window) -> Visit {
        let (entry, hash) = self.entry(window);
        let read_count = self.read_count.load(Relaxed) + 1;
        self.read_count.store(read_count, Relaxed);
        let now = (read_count / (self.memory_reads / 4)) & TIME_MASK;
        let seen = entry.load(Relaxed);
        let is_near = now.wrapping_sub(seen >> TIME_SHIFT) & TIME_MASK <= 4;
        let (reads, asked) = match seen >> HASH_SHIFT == hash && is_near {
            true => ((seen & READS_MAX) + 1, seen & ASKED),
            false => (1, 0),
        };
        entry.store(hash << HASH_SHIFT | now << TIME_SHIFT | asked | reads.min(READS_MAX), Relaxed);
        self.near_share.note(reads > 1);
        Visit { reads, was_asked: asked != 0 }
    }

    /// Notes that a whole window was requested after a read in it.
    pub(crate) fn note_asked(&self, window: Window) {
        let (entry, hash) = self.entry(window);
        let seen = entry.load(Relaxed);
        if seen >> HASH_SHIFT == hash {
            entry.store(seen | ASKED, Relaxed);
        }
    }

    /// The entry of a window, and its hash.
    fn entry(&self, window: Window) -> (&AtomicU64, u64) {
        let hash = (window.owner ^ window.number.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> HASH_SHIFT;
        let entries = self.entries.get_or_init(|| (0..self.memory_reads).map(|_| AtomicU64::new(0)).collect());
        (&entries[(hash >> (u64::BITS - HASH_SHIFT - INDEX_BITS)) as usize % entries.len()], hash)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MEMORY_READS: u64 = 1 << 12;

    #[test]
    fn reads_of_a_window_are_counted_while_they_are_near() {
        let density = Density::new(MEMORY_READS);
        let reads = |owner, number| density.note(Window { owner, number }).reads;
        assert_eq!([reads(5, 0), reads(5, 1), reads(5, 0), reads(6, 0)], [1, 1, 2, 1]);
        let wait = |count: u64| {
            for _ in 0..count {
                density.note(Window { owner: 7, number: 7 });
            }
        };
        wait(MEMORY_READS / 2);
        assert_eq!(reads(5, 0), 3);
        wait(2 * MEMORY_READS);
        assert_eq!(reads(5, 0), 1, "the earlier reads are forgotten");
    }

    #[test]
    fn most_windows_are_remembered_for_the_given_number_of_reads() {
        for memory_reads in [1 << 12, 1 << 15] {
            let density = Density::new(memory_reads);
            let windows = || (0..memory_reads / 2).map(|number| Window { owner: 3, number: 5 * number });
            windows().for_each(|window| {
                density.note(window);
            });
            let seen = windows().filter(|window| density.note(*window).reads == 2).count() as u64;
            assert!(seen > memory_reads / 4, "{seen} of {}", memory_reads / 2);
        }
    }

    #[test]
    fn requested_windows_are_remembered() {
        let density = Density::new(MEMORY_READS);
        let window = |number| Window { owner: 1, number };
        density.note_asked(window(0));
        assert!(!density.note(window(0)).was_asked, "nobody read from it");
        density.note_asked(window(0));
        assert!(density.note(window(0)).was_asked && !density.note(window(1)).was_asked);
    }

    #[test]
    fn the_share_follows_late_reads() {
        let density = Density::new(MEMORY_READS);
        assert_eq!(density.near_share(), MovingShare::WHOLE);
        for (windows, step, dense) in [(1000, 1, false), (100, 0, true), (1000, 3, false)] {
            for index in 0..windows {
                density.note(Window { owner: windows, number: (1 << 20) | (index * step) });
            }
            let share = density.near_share();
            assert_eq!(share > MovingShare::WHOLE / 2, dense, "{windows} {step}: {share}");
        }
    }
}
