//! The reads of the programs of a launch.

use std::collections::HashMap;

use floe_image::{ByteRange, Nid};

/// The maximum number of files whose last read is remembered.
const READ_MAX: usize = 1 << 14;

/// The length of the kernel's readahead for a sequential reader in bytes: two windows.
const READAHEAD_BYTES: u64 = 256 << 10;

/// The last read of each file. A replay skips ranges that it implies: both would decode the same blocks.
#[derive(Default)]
pub(super) struct ProgramReads {
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
    pub(super) fn note(&mut self, nid: Nid, range: ByteRange) {
        if self.last_reads.len() < READ_MAX || self.last_reads.contains_key(&nid) {
            let is_sequential = self.last_reads.get(&nid).is_some_and(|last| last.range.end() == range.offset());
            self.last_reads.insert(nid, LastRead { range, is_sequential });
        }
    }

    /// Returns the part of `range` that a replay has to store: its end, from the end of the last read of the file on. If the
    /// file is read sequentially, the part begins where the kernel's readahead ends.
    pub(super) fn unread(&self, nid: Nid, range: ByteRange) -> ByteRange {
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
    fn remembered_files_are_limited() {
        let mut program_reads = ProgramReads::default();
        (0..2 * READ_MAX as u64).for_each(|number| program_reads.note(Nid(number), ByteRange::new(0, 1)));
        assert!(program_reads.last_reads.len() <= READ_MAX);
    }
}
