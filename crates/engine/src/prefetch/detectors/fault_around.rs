//! Bytes of a source that stand around those that had to be waited for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use floe_image::{ByteRange, DeviceId};

/// How many windows are remembered: those of the last few hundred MiB that were read from. A read that is near one of long
/// ago says little about the next.
const REMEMBERED_COUNT: usize = 1 << 11;

/// The share of reads that stand near earlier ones is a moving average over about so many.
const AVERAGED_READS: u32 = 64;

/// Where no windows are brought, it is watched how dense reads are by windows of so many bytes.
const WATCHED_BYTES: u64 = 128 << 10;

/// Shares are counted in parts of this.
const WHOLE: u32 = 1 << 16;

/// From this share on, what stands around is worth its transfer: it takes about as long as one and a half waits for the
/// device, so a window must be read from two and a half times.
const WORTHWHILE: u32 = WHOLE / 5 * 3;

/// Has the source bring what stands around bytes that had to be waited for, with the same wait.
///
/// What a device takes to bring some tens of KiB is not much more than what it takes to bring one block, and what a
/// program wants next mostly stands near: so does the kernel where a mapped file is touched. Where it does not, as with
/// lookups all over a large image, the transfer is for nothing; so it is watched how many reads stand in a window that
/// was read from before, and as long as they are few, nothing is brought but what is wanted.
pub(crate) struct FaultAround {
    window_bytes: AtomicU64,
    /// The windows that were read from, and whether they were asked for as a whole. Windows that meet here disturb each
    /// other, which costs speed alone.
    seen: Box<[AtomicU64]>,
    near_share: AtomicU32,
}

impl FaultAround {
    /// Windows of so many bytes, aligned to that; none if it is zero, but it is watched how dense reads are all the same.
    pub(crate) fn new(window_bytes: u64) -> Self {
        let seen = (0..REMEMBERED_COUNT).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { window_bytes: AtomicU64::new(window_bytes), seen, near_share: AtomicU32::new(WHOLE) }
    }

    /// Has windows of another size from now on.
    pub(crate) fn set(&self, window_bytes: u64) {
        self.window_bytes.store(window_bytes, Relaxed);
    }

    /// Whether reads stand near each other of late.
    pub(crate) fn is_worthwhile(&self) -> bool {
        self.near_share.load(Relaxed) >= WORTHWHILE
    }

    /// Notes that `wanted` was in memory.
    pub(crate) fn note_hit(&self, device: DeviceId, wanted: ByteRange) {
        let Some((number, _, entry)) = self.entry(device, wanted) else { return };
        let was_seen = entry.load(Relaxed) >> 1 == number;
        if !was_seen {
            entry.store(number << 1, Relaxed);
        }
        self.average(was_seen);
    }

    /// Notes that `wanted` is not in memory; gives what to ask for before it is read, if that is worth it: its window,
    /// which is asked for only once.
    pub(crate) fn note_miss(&self, device: DeviceId, wanted: ByteRange) -> Option<ByteRange> {
        let (number, window_bytes, entry) = self.entry(device, wanted)?;
        let seen = entry.load(Relaxed);
        let (was_seen, was_asked) = (seen >> 1 == number, seen == number << 1 | 1);
        let is_on = self.window_bytes.load(Relaxed) > 0;
        let asks = self.average(was_seen) >= WORTHWHILE && !was_asked && is_on;
        entry.store(number << 1 | u64::from(asks || was_asked), Relaxed);
        asks.then(|| ByteRange::new(wanted.offset() - wanted.offset() % window_bytes, window_bytes))
    }

    /// The number of the window that `wanted` begins in, its size, and its place in the table; `None` where it is as
    /// large.
    fn entry(&self, device: DeviceId, wanted: ByteRange) -> Option<(u64, u64, &AtomicU64)> {
        let window_bytes = match self.window_bytes.load(Relaxed) {
            0 => WATCHED_BYTES,
            window_bytes => window_bytes,
        };
        if wanted.len() >= window_bytes {
            return None;
        }
        let number = wanted.offset().checked_div(window_bytes)? ^ (u64::from(device.0) << 46);
        Some((number, window_bytes, self.seen.get(number as usize % REMEMBERED_COUNT)?))
    }

    /// Takes a read into the share of those that stand near others; gives the share.
    fn average(&self, is_near: bool) -> u32 {
        let share = self.near_share.load(Relaxed);
        let share = share - share / AVERAGED_READS + if is_near { WHOLE / AVERAGED_READS } else { 0 };
        self.near_share.store(share.min(WHOLE), Relaxed);
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 65536;

    fn miss(around: &FaultAround, offset: u64, len: u64) -> Option<ByteRange> {
        around.note_miss(DeviceId(0), ByteRange::new(offset, len))
    }

    #[test]
    fn a_window_is_asked_for_once() {
        let around = FaultAround::new(WINDOW);
        assert_eq!(miss(&around, 70_000, 4096), Some(ByteRange::new(WINDOW, WINDOW)));
        assert_eq!(miss(&around, WINDOW, 4096), None, "it was asked for");
        assert_eq!(miss(&around, 0, WINDOW), None, "that is a window by itself");
        assert_eq!(miss(&around, 1 << 40, 1), Some(ByteRange::new(1 << 40, WINDOW)));
        let other = around.note_miss(DeviceId(1), ByteRange::new(WINDOW, 4096));
        assert_eq!(other, Some(ByteRange::new(WINDOW, WINDOW)), "of another device");
        around.set(0);
        assert_eq!(miss(&around, 0, 1), None);
    }

    #[test]
    fn density_is_watched_also_where_no_windows_are_brought() {
        let around = FaultAround::new(0);
        assert!((0..1000).all(|index| miss(&around, index * WATCHED_BYTES * 3, 4096).is_none()));
        assert!(!around.is_worthwhile());
        (0..100).for_each(|index| around.note_hit(DeviceId(0), ByteRange::new(index * 512, 512)));
        assert!(around.is_worthwhile());
    }

    #[test]
    fn scattered_reads_stop_it_and_dense_ones_begin_it_again() {
        let around = FaultAround::new(WINDOW);
        let asked = (0..1000).filter(|index| miss(&around, index * WINDOW * 3, 4096).is_some()).count();
        assert!((20..100).contains(&asked), "{asked}");
        assert_eq!(miss(&around, 1 << 40, 4096), None);
        assert!(!around.is_worthwhile());
        for index in 0..100 {
            around.note_hit(DeviceId(0), ByteRange::new((1 << 40) + index * 512, 512));
        }
        assert!(around.is_worthwhile() && miss(&around, 1 << 41, 4096).is_some());
    }
}
