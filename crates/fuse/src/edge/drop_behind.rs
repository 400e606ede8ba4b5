//! Drop-behind in the hidden file of a front.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use floe_engine::Sink;
use floe_image::{ByteRange, Nid};

use crate::connection::serving_thread::may_wait_for_mount;

/// How many bytes that the front asked for stay, among them what the kernel has read ahead of a reader.
const READ_BYTES_MAX: u64 = 8 << 20;

/// How many bytes that were pushed stay at least: nobody may have asked for them yet.
const PUSHED_BYTES_MIN: u64 = 4 << 20;

/// And at most.
const PUSHED_BYTES_MAX: u64 = 64 << 20;

/// This part of all that was ever brought may stay of what was pushed, within the bounds above.
const PUSHED_PART: u64 = 24;

/// The most ranges that are noted; beyond them the oldest goes early.
const RANGES_MAX: usize = 1 << 16;

/// After so long without a request, all that the front asked for goes.
const QUIET: Duration = Duration::from_secs(1);

/// How often a thread that has nothing to drop sees whether the mount is gone.
const LOOK: Duration = Duration::from_secs(60);

/// Drops a range of the hidden file from the kernel's page cache. It may wait for reads of that range that are under way.
pub(crate) type DropRange = Box<dyn Fn(ByteRange) + Send>;

/// Notes what comes into the page cache of a hidden file and what of it is to go.
///
/// The front copies what it reads into pages of its own, so what stays in the hidden file's is a second copy. The kernel
/// does not tell when the front has copied; so the oldest goes once more has come than may stay. Metadata stays: the front
/// reads it in place.
pub(crate) struct DropBehind {
    state: Mutex<State>,
    wake: Condvar,
    /// Where file data are; metadata are elsewhere.
    data: ByteRange,
}

#[derive(Default)]
struct State {
    read: Staying,
    pushed: Staying,
    brought_bytes: u64,
    /// How many requests there were.
    requests: u64,
}

/// Ranges that stay for now, the oldest first.
#[derive(Default)]
struct Staying {
    ranges: VecDeque<ByteRange>,
    bytes: u64,
}

impl DropBehind {
    /// Notes for a hidden file whose data are in the range `data`.
    pub(crate) fn new(data: ByteRange) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), wake: Condvar::new(), data })
    }

    /// The front asks for a range.
    pub(crate) fn note_read(&self, range: ByteRange) {
        self.note(range, |state| &mut state.read);
    }

    /// A range was pushed.
    pub(crate) fn note_pushed(&self, range: ByteRange) {
        self.note(range, |state| &mut state.pushed);
    }

    fn note(&self, range: ByteRange, staying: fn(&mut State) -> &mut Staying) {
        let range = range.intersection(self.data);
        if range.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.requests += 1;
        state.brought_bytes = state.brought_bytes.saturating_add(range.len());
        staying(&mut state).add(range);
        if state.has_too_much() || state.read.ranges.len() == 1 {
            self.wake.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a while until something is to go, and takes it.
    fn next(&self, quiet: Duration) -> Vec<ByteRange> {
        let mut state = self.lock();
        if !state.has_too_much() {
            let (requests, has_read) = (state.requests, !state.read.ranges.is_empty());
            let waited = self.wake.wait_timeout(state, if has_read { quiet } else { LOOK });
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if has_read && state.requests == requests {
                return state.read.take_all();
            }
        }
        let pushed_bytes_max = state.pushed_bytes_max();
        let mut ranges = state.read.take_beyond(READ_BYTES_MAX);
        ranges.extend(state.pushed.take_beyond(pushed_bytes_max));
        ranges
    }
}

/// Drops what is to go until the notes are gone. This thread serves no request, as it may have to wait for some.
pub(crate) fn run(notes: &Weak<DropBehind>, drop_range: &DropRange) {
    may_wait_for_mount();
    while let Some(notes) = notes.upgrade() {
        for range in notes.next(QUIET) {
            drop_range(range);
        }
    }
}

/// A page cache whose pushes are noted.
pub(crate) struct Noted<P> {
    pub(crate) pages: P,
    pub(crate) notes: Arc<DropBehind>,
}

impl<S: Sink> Sink for Noted<S> {
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        let len = self.pages.store(nid, offset, bytes);
        self.notes.note_pushed(ByteRange::new(offset, len as u64));
        len
    }

    fn page_bytes(&self) -> u64 {
        self.pages.page_bytes()
    }
}

impl State {
    /// How much may stay of what was pushed.
    fn pushed_bytes_max(&self) -> u64 {
        (self.brought_bytes / PUSHED_PART).clamp(PUSHED_BYTES_MIN, PUSHED_BYTES_MAX)
    }

    fn has_too_much(&self) -> bool {
        // Some at a time, as each wake-up costs.
        let with_slack = |bytes: u64| bytes + bytes / 4;
        self.read.exceeds(with_slack(READ_BYTES_MAX)) || self.pushed.exceeds(with_slack(self.pushed_bytes_max()))
    }
}

impl Staying {
    /// Adds a range, to the last one where it follows that.
    fn add(&mut self, range: ByteRange) {
        self.bytes += range.len();
        match self.ranges.back_mut() {
            Some(last) if last.end() == range.offset() => *last = ByteRange::between(last.offset(), range.end()),
            _ => self.ranges.push_back(range),
        }
    }

    fn exceeds(&self, bytes: u64) -> bool {
        self.bytes > bytes || self.ranges.len() > RANGES_MAX
    }

    /// Takes the oldest until no more than so many bytes are left.
    fn take_beyond(&mut self, bytes_max: u64) -> Vec<ByteRange> {
        let mut taken = Vec::new();
        while self.exceeds(bytes_max) {
            let Some(oldest) = self.ranges.pop_front() else { break };
            // A long range goes in part.
            let len =
                if self.ranges.len() < RANGES_MAX { oldest.len().min(self.bytes - bytes_max) } else { oldest.len() };
            let gone = ByteRange::new(oldest.offset(), len);
            self.bytes -= len;
            taken.push(gone);
            if gone.end() < oldest.end() {
                self.ranges.push_front(ByteRange::between(gone.end(), oldest.end()));
            }
        }
        taken
    }

    fn take_all(&mut self) -> Vec<ByteRange> {
        self.bytes = 0;
        std::mem::take(&mut self.ranges).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const ALL: ByteRange = ByteRange::new(0, u64::MAX);

    fn bytes(ranges: &[ByteRange]) -> u64 {
        ranges.iter().map(|range| range.len()).sum()
    }

    #[test]
    fn the_oldest_goes_when_more_has_come_than_may_stay() {
        let notes = DropBehind::new(ALL);
        for index in 0..12 {
            notes.note_read(ByteRange::new(2 * index * MIB, MIB));
        }
        let gone = notes.next(Duration::from_millis(1));
        assert_eq!(bytes(&gone), 12 * MIB - READ_BYTES_MAX);
        assert_eq!(gone.first().map(|range| range.offset()), Some(0), "the oldest");
        assert_eq!(gone.last().map(|range| range.offset()), Some(6 * MIB));
        // Nothing is asked for any more.
        assert_eq!(bytes(&notes.next(Duration::from_millis(1))), READ_BYTES_MAX);
        assert!(notes.lock().read.ranges.is_empty());
    }

    #[test]
    fn pushed_ranges_stay_when_nobody_asks() {
        let notes = DropBehind::new(ALL);
        notes.note_pushed(ByteRange::new(0, MIB));
        notes.note_read(ByteRange::new(MIB, MIB));
        assert_eq!(notes.next(Duration::from_millis(1)), [ByteRange::new(MIB, MIB)]);
        assert_eq!(notes.lock().pushed.bytes, MIB);
    }

    #[test]
    fn long_ranges_go_in_part_and_metadata_stays() {
        let notes = DropBehind::new(ByteRange::new(10 * MIB, 1 << 40));
        notes.note_read(ByteRange::new(0, 9 * MIB));
        assert!(notes.lock().read.ranges.is_empty());
        for index in 0..80 {
            notes.note_read(ByteRange::new((10 + index) * MIB, MIB));
        }
        assert_eq!(notes.next(Duration::from_millis(1)), [ByteRange::between(10 * MIB, 90 * MIB - READ_BYTES_MAX)]);
    }

    #[test]
    fn more_pushed_bytes_may_stay_where_more_was_brought() {
        let mut state = State::default();
        for (brought, expected) in [(0, PUSHED_BYTES_MIN), (240 * MIB, 10 * MIB), (u64::MAX, PUSHED_BYTES_MAX)] {
            state.brought_bytes = brought;
            assert_eq!(state.pushed_bytes_max(), expected);
        }
    }
}
