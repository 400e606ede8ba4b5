//! Chunks that are fetched although no reader waits for them: why, and whether they are read later.

use std::{
    ops::Range,
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use crate::{
    AheadCounts, AheadReason,
    counters::Counter,
    layout::{ChunkIndex, ChunkLayout},
    notes::Notes,
};

/// The size in bytes of the areas of an object that have allowances of their own. Metadata, and the parts of a program, are next to
/// each other.
const AREA_BYTES: u64 = 16 << 20;

/// Of bytes that readers wait for, the allowances of their area and of the object grow by one in this many, so that bytes ahead of
/// readers are tried again when reads change.
const TRIED_PART: u64 = 64;

/// Of bytes that were fetched ahead and are read, the allowances grow by this many halves, so that they last while two of three bytes
/// are read. The allowance of the object gets one part in so many of that, the one of the area gets the rest.
const READ_HALVES: u64 = 3;
const OBJECT_PART: u64 = 4;

/// The maximum of an allowance in bytes, so that good use does not pay for a long time without use.
const ALLOWANCE_BYTES_MAX: i64 = 4 << 20;

/// The number of units of the link that may be fetched ahead, and not be read, before the first ones are read.
const CREDIT_UNITS: u64 = 16;

/// The chunks of an object that were fetched ahead of readers and not read yet, and how useful each reason has been.
#[derive(Debug)]
pub(crate) struct AheadChunks {
    layout: ChunkLayout,
    /// By chunk: the index of its reason plus one; 0 if it was read, or not fetched ahead.
    reasons: Notes,
    /// The number of chunks with a reason.
    unread: AtomicU64,
    fetched_bytes: [Counter; AheadReason::ALL.len()],
    read_bytes: [Counter; AheadReason::ALL.len()],
    /// How many bytes may be fetched for [`AheadReason::Rounding`] and [`AheadReason::Region`], by area.
    area_allowances: Notes,
    /// The same for all areas whose own allowance is used up, beyond the credit. Negative if bytes were not read.
    allowance: AtomicI64,
    /// The unit of the link in chunks, at least one.
    unit: AtomicU64,
}

impl AheadChunks {
    pub(crate) fn new(layout: ChunkLayout) -> Self {
        Self {
            layout,
            reasons: Notes::new(layout.data_chunks()),
            unread: AtomicU64::new(0),
            fetched_bytes: Default::default(),
            read_bytes: Default::default(),
            area_allowances: Notes::new(layout.data_len().div_ceil(AREA_BYTES)),
            allowance: AtomicI64::new(0),
            unit: AtomicU64::new(1),
        }
    }

    /// Notes the unit of the link in chunks.
    pub(crate) fn note_unit(&self, unit: u64) {
        self.unit.store(unit.max(1), Relaxed);
    }

    /// Whether as many chunks near this one may be fetched ahead. It depends on how many of the earlier ones were read.
    pub(crate) fn permits(&self, index: ChunkIndex, count: u64) -> bool {
        let bytes_of = |count: u64| count.saturating_mul(self.layout.chunk_bytes());
        let (bytes, credit) = (bytes_of(count), bytes_of(CREDIT_UNITS.saturating_mul(self.unit.load(Relaxed))));
        let in_area = self.area_allowances.known(self.area_of(index)).map_or(0, |allowance| allowance.load(Relaxed));
        in_area >= bytes
            || self.allowance.load(Relaxed).saturating_add_unsigned(credit).saturating_sub_unsigned(bytes) >= 0
    }

    /// Notes that a reader waits for the fetch of this chunk.
    pub(crate) fn note_waited(&self, index: ChunkIndex) {
        let bytes = self.layout.range(index).len() / TRIED_PART;
        self.grow(index, bytes, bytes);
    }

    /// Notes that this chunk of data is fetched ahead.
    pub(crate) fn note_fetched(&self, index: ChunkIndex, reason: AheadReason) {
        let Some(note) = self.reasons.note(index).filter(|_| !self.layout.is_tree(index)) else { return };
        if note.swap(reason.index() as u64 + 1, Relaxed) == 0 {
            self.unread.fetch_add(1, Relaxed);
        }
        let bytes = self.layout.range(index).len();
        self.fetched_bytes[reason.index()].add(bytes);
        if reason.is_guess() {
            let area = self.area_allowances.note(self.area_of(index));
            let paid = area.map(|area| area.fetch_update(Relaxed, Relaxed, |allowance| allowance.checked_sub(bytes)));
            if !matches!(paid, Some(Ok(_))) {
                self.allowance.fetch_sub(i64::try_from(bytes).unwrap_or(0), Relaxed);
            }
        }
    }

    /// Notes that a reader has read these chunks, or parts of them.
    pub(crate) fn note_read(&self, chunks: Range<ChunkIndex>) {
        if self.unread.load(Relaxed) == 0 {
            return;
        }
        for index in chunks.filter(|index| self.is_unread(*index)) {
            let number = self.reasons.known(index).map_or(0, |note| note.swap(0, Relaxed));
            let reason = AheadReason::ALL.iter().find(|reason| reason.index() as u64 + 1 == number);
            let Some(reason) = reason else { continue };
            self.unread.fetch_sub(1, Relaxed);
            let bytes = self.layout.range(index).len();
            self.read_bytes[reason.index()].add(bytes);
            if reason.is_guess() {
                let grown = bytes * READ_HALVES / 2;
                self.grow(index, grown - grown / OBJECT_PART, grown / OBJECT_PART);
            }
        }
    }

    /// Whether a chunk was fetched ahead by this process, and not read since.
    pub(crate) fn is_unread(&self, index: ChunkIndex) -> bool {
        self.reasons.known(index).is_some_and(|note| note.load(Relaxed) != 0)
    }

    /// The bytes so far, in the order of [`AheadReason::ALL`].
    pub(crate) fn counts(&self) -> [AheadCounts; AheadReason::ALL.len()] {
        AheadReason::ALL.map(|reason| AheadCounts {
            fetched_bytes: self.fetched_bytes[reason.index()].total(),
            read_bytes: self.read_bytes[reason.index()].total(),
        })
    }

    fn area_of(&self, index: ChunkIndex) -> u64 {
        index / (AREA_BYTES / self.layout.chunk_bytes())
    }

    fn grow(&self, index: ChunkIndex, area_bytes: u64, object_bytes: u64) {
        if let Some(area) = self.area_allowances.note(self.area_of(index)) {
            let grown = |allowance: u64| Some((allowance + area_bytes).min(ALLOWANCE_BYTES_MAX.unsigned_abs()));
            let _ = area.fetch_update(Relaxed, Relaxed, grown);
        }
        let grown = |allowance: i64| Some(allowance.saturating_add_unsigned(object_bytes).min(ALLOWANCE_BYTES_MAX));
        let _ = self.allowance.fetch_update(Relaxed, Relaxed, grown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CHUNK_BYTES;

    fn ahead() -> AheadChunks {
        let len = 1 << 30;
        AheadChunks::new(ChunkLayout::new(len, len, CHUNK_BYTES))
    }

    /// Fetches a chunk ahead, if that is permitted, with each of 20,000 chunks that readers wait for, and reads one of `read_part` of
    /// them. Returns the share of chunks with which one was fetched.
    fn share(ahead: &AheadChunks, read_part: u64) -> f64 {
        let mut fetched = 0;
        for index in (0..40_000).step_by(2) {
            ahead.note_waited(index);
            if ahead.permits(index, 1) {
                ahead.note_fetched(index + 1, AheadReason::Rounding);
                if fetched % read_part == 0 {
                    ahead.note_read(index..index + 2);
                }
                fetched += 1;
            }
        }
        f64::from(u32::try_from(fetched).expect("few")) / 20_000.0
    }

    #[test]
    fn bytes_ahead_are_fetched_while_they_are_read() {
        for (read_part, expected) in [(1, 1.0..=1.0), (2, 0.1..=0.2), (4, 0.03..=0.06), (1 << 60, 0.03..=0.04)] {
            let share = share(&ahead(), read_part);
            assert!(expected.contains(&share), "one of {read_part} is read: {share}");
        }
    }

    #[test]
    fn areas_with_good_use_do_not_pay_for_others() {
        let ahead = ahead();
        let area = AREA_BYTES / CHUNK_BYTES;
        // Nothing is read of the chunks that are fetched ahead at first, in all areas.
        (0..2 * CREDIT_UNITS).for_each(|number| ahead.note_fetched(number * area, AheadReason::Rounding));
        let is_permitted = |index| ahead.permits(index, 4);
        assert!(!is_permitted(0) && !is_permitted(3 * area));
        (1..9).for_each(|index| ahead.note_fetched(index, AheadReason::Region));
        ahead.note_read(1..9);
        assert!(is_permitted(9) && is_permitted(area - 1) && !is_permitted(area));
    }

    #[test]
    fn the_first_bytes_depend_on_the_link() {
        let ahead = ahead();
        let permitted = |unit| {
            ahead.note_unit(unit);
            (0..).find(|count| !ahead.permits(7, *count))
        };
        assert_eq!(permitted(0), Some(CREDIT_UNITS + 1), "a chunk is the smallest unit");
        assert_eq!(permitted(4), Some(4 * CREDIT_UNITS + 1));
        ahead.note_fetched(7, AheadReason::Hint);
        assert_eq!(permitted(1), Some(CREDIT_UNITS + 1), "a hint is no guess");
        ahead.note_fetched(7, AheadReason::Region);
        assert_eq!(permitted(1), Some(CREDIT_UNITS));
        (0..1 << 20).for_each(|_| ahead.note_waited(1));
        let most = ALLOWANCE_BYTES_MAX.unsigned_abs() / CHUNK_BYTES;
        assert_eq!(permitted(1), Some(most + CREDIT_UNITS + 1), "it does not grow for ever");
    }

    #[test]
    fn chunks_are_read_once() {
        let ahead = ahead();
        for index in [3, 4, 4, 1 << 40] {
            ahead.note_fetched(index, AheadReason::Hint);
        }
        assert_eq!([2, 3, 4, 5].map(|index| ahead.is_unread(index)), [false, true, true, false]);
        ahead.note_read(0..4);
        ahead.note_read(0..4);
        assert_eq!([3, 4].map(|index| ahead.is_unread(index)), [false, true]);
        let counts = ahead.counts()[AheadReason::Hint.index()];
        assert_eq!((counts.fetched_bytes, counts.read_bytes), (3 * CHUNK_BYTES, CHUNK_BYTES));
    }
}
