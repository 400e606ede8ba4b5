//! Detects the beginning of a recorded launch by the reads of its programs, and whether the launch still matches its profile.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use floe_fuse::ImageAccess;
use floe_image::{ByteRange, Nid};
use floe_sync::{Condvar, Mutex, MutexGuard};

/// The minimum number of used files outside of the profile for a launch to count as having left it.
const OUTSIDE_MIN: usize = 16;

/// A launch has left its profile if more than one in this many of its files is outside.
const OUTSIDE_SHARE: u64 = 4;

/// The maximum number of files outside of the profile that are remembered.
const OUTSIDE_MAX: usize = 1024;

/// The maximum number of files that are remembered until the files of the profile are known.
const EARLY_MAX: usize = 1024;

/// Compares the files that programs use with those of the profile. Directories are ignored, because all programs share
/// them.
#[derive(Default)]
pub(super) struct ProfileMatch {
    is_over: AtomicBool,
    state: Mutex<MatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct MatchState {
    recorded: HashSet<Nid>,
    /// Files that were used before the files of the profile were known.
    early: HashSet<Nid>,
    has_begun: bool,
    outside: HashSet<Nid>,
    reads: ProgramReads,
    /// The number of files that were replayed.
    replayed: u64,
}

impl ProfileMatch {
    /// Notes an access.
    pub(super) fn note(&self, access: ImageAccess<'_>) {
        if self.is_over() {
            return;
        }
        let nid = match access {
            ImageAccess::Found { nid, is_directory: false, .. }
            | ImageAccess::Link(nid)
            | ImageAccess::Read(nid, _) => nid,
            ImageAccess::Found { .. } | ImageAccess::Missing { .. } | ImageAccess::List(_) => return,
        };
        let mut state = self.lock();
        if let ImageAccess::Read(_, range) = access {
            state.reads.note(nid, range);
        }
        if state.recorded.contains(&nid) {
            if !std::mem::replace(&mut state.has_begun, true) {
                self.changed.notify_all();
            }
        } else if state.has_begun {
            if state.outside.len() < OUTSIDE_MAX {
                state.outside.insert(nid);
            }
        } else if state.early.len() < EARLY_MAX {
            state.early.insert(nid);
        }
    }

    /// Notes that the profile has this file.
    pub(super) fn add(&self, nid: Nid) {
        let mut state = self.lock();
        state.recorded.insert(nid);
        if state.early.remove(&nid) || state.outside.remove(&nid) {
            state.has_begun = true;
            self.changed.notify_all();
        }
    }

    /// Waits until a file of the profile is used. Returns `false` if the mount ends before.
    pub(super) fn wait_for_beginning(&self) -> bool {
        let state = self.lock();
        let waiting = |state: &mut MatchState| !state.has_begun && !self.is_over();
        let mut state = self.changed.wait_while(state, waiting);
        state.early = HashSet::new();
        !self.is_over()
    }

    /// Waits until a file of the profile is used or the mount ends, at most for `time`. Returns whether it did.
    pub(super) fn begins_within(&self, time: Duration) -> bool {
        let waiting = |state: &mut MatchState| !state.has_begun && !self.is_over();
        let waited = self.changed.wait_timeout_while(self.lock(), time, waiting);
        !waited.1.timed_out()
    }

    /// Waits until the mount ends, at most for `time`.
    pub(super) fn wait_for_end(&self, time: Duration) {
        let state = self.lock();
        drop(self.changed.wait_timeout_while(state, time, |_| !self.is_over()));
    }

    /// Notes the number of files replayed so far.
    pub(super) fn note_replayed(&self, count: u64) {
        self.lock().replayed = count;
    }

    /// Returns the part of `range` that the replay has to store ([`ProgramReads::unread`]).
    pub(super) fn unread(&self, nid: Nid, range: ByteRange) -> ByteRange {
        self.lock().reads.unread(nid, range)
    }

    /// Whether the launch has left the profile.
    pub(super) fn is_left(&self) -> bool {
        let state = self.lock();
        let outside = state.outside.len() as u64;
        outside >= OUTSIDE_MIN as u64 && outside * (OUTSIDE_SHARE - 1) > state.replayed
    }

    /// The number of files outside of the profile that were used during the replay.
    pub(super) fn outside_count(&self) -> u64 {
        self.lock().outside.len() as u64
    }

    /// Whether the replay or the mount has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Ends the comparison. Later accesses are ignored.
    pub(super) fn end(&self) {
        let _state = self.lock();
        self.is_over.store(true, Relaxed);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, MatchState> {
        self.state.lock()
    }
}

/// The maximum number of files whose last read is remembered.
const READ_MAX: usize = 1 << 14;

/// The length of the kernel's readahead for a sequential reader in bytes: two windows.
const READAHEAD_BYTES: u64 = 256 << 10;

/// The last read of each file. A replay skips ranges that it implies: both would decode the same blocks.
#[derive(Default)]
struct ProgramReads {
    last_reads: HashMap<Nid, LastRead>,
}

/// The last read of a file.
#[derive(Clone, Copy, Debug)]
struct LastRead {
    range: ByteRange,
    /// Whether it continued the read before it.
    is_sequential: bool,
}

impl ProgramReads {
    /// Notes a read of a file.
    fn note(&mut self, nid: Nid, range: ByteRange) {
        if self.last_reads.len() < READ_MAX || self.last_reads.contains_key(&nid) {
            let is_sequential = self.last_reads.get(&nid).is_some_and(|last| last.range.end() == range.offset());
            self.last_reads.insert(nid, LastRead { range, is_sequential });
        }
    }

    /// Returns the part of `range` that a replay has to store: its end, from the end of the last read of the file on. If the
    /// file is read sequentially, the part begins where the kernel's readahead ends.
    fn unread(&self, nid: Nid, range: ByteRange) -> ByteRange {
        let Some(LastRead { range: read, is_sequential }) = self.last_reads.get(&nid).copied() else {
            return range;
        };
        let start = match is_sequential {
            true => read.end().saturating_add(READAHEAD_BYTES),
            false if read.offset() <= range.offset() => read.end(),
            false => range.offset(),
        };
        ByteRange::between(start.clamp(range.offset(), range.end()), range.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: u64) -> ImageAccess<'static> {
        ImageAccess::Read(Nid(number), ByteRange::new(0, 1))
    }

    #[test]
    fn a_recorded_file_begins_the_launch_whenever_it_becomes_known() {
        let found =
            |number, is_directory| ImageAccess::Found { parent: Nid(0), name: b"a", nid: Nid(number), is_directory };
        for (access, begins) in [(read(1), true), (found(1, false), true), (found(1, true), false), (read(2), false)] {
            for is_known_before in [false, true] {
                let profile_match = ProfileMatch::default();
                if is_known_before {
                    profile_match.add(Nid(1));
                }
                profile_match.note(access);
                profile_match.add(Nid(1));
                assert_eq!(profile_match.lock().has_begun, begins, "{access:?}");
            }
        }
    }

    #[test]
    fn a_launch_leaves_with_a_share_of_its_files() {
        for (outside, replayed, is_left) in
            [(15, 0, false), (16, 0, true), (16, 47, true), (16, 48, false), (30, 48, true)]
        {
            let profile_match = ProfileMatch::default();
            profile_match.add(Nid(1));
            profile_match.note(read(1));
            (0..outside).for_each(|number| profile_match.note(read(100 + number)));
            (0..outside).for_each(|number| profile_match.note(read(100 + number)));
            profile_match.note_replayed(replayed);
            assert_eq!(profile_match.is_left(), is_left, "{outside} of {replayed}");
        }
    }

    #[test]
    fn remembered_files_are_limited() {
        let profile_match = ProfileMatch::default();
        (0..10_000).for_each(|number| profile_match.note(read(number)));
        profile_match.add(Nid(1));
        (0..10_000).for_each(|number| profile_match.note(read(number)));
        let state = profile_match.lock();
        assert!(state.early.len() <= EARLY_MAX && state.outside.len() <= OUTSIDE_MAX);
    }

    #[test]
    fn a_replay_leaves_out_what_the_program_is_reading() {
        let ahead = READAHEAD_BYTES;
        for (reads, range, expected) in [
            (&[][..], (0, 100), (0, 100)),
            // A read somewhere in the file leaves the rest to the replay.
            (&[(0, 50)], (0, 100), (50, 100)),
            (&[(200, 250)], (0, 100), (0, 100)),
            (&[(50, 150)], (0, 100), (0, 100)),
            (&[(0, 150)], (50, 100), (100, 100)),
            // The kernel's readahead for a sequential reader is skipped.
            (&[(0, 50), (50, 100)], (0, ahead + 300), (ahead + 100, ahead + 300)),
            (&[(0, 50), (50, 100)], (90, ahead), (ahead, ahead)),
            (&[(0, 50), (60, 100)], (0, 300), (0, 300)),
            (&[(0, 50), (60, 100)], (80, 300), (100, 300)),
        ] {
            let mut program_reads = ProgramReads::default();
            for (start, end) in reads {
                program_reads.note(Nid(1), ByteRange::between(*start, *end));
            }
            let unread = program_reads.unread(Nid(1), ByteRange::between(range.0, range.1));
            let expected = ByteRange::between(expected.0, expected.1);
            assert_eq!(unread, expected, "{reads:?} {range:?}");
            assert_eq!(program_reads.unread(Nid(2), expected), expected);
        }
    }

    #[test]
    fn remembered_reads_are_limited() {
        let mut program_reads = ProgramReads::default();
        (0..2 * READ_MAX as u64).for_each(|number| program_reads.note(Nid(number), ByteRange::new(0, 1)));
        assert!(program_reads.last_reads.len() <= READ_MAX);
    }
}
