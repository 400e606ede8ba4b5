//! Detects sequential readers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{ByteRange, Nid};

use crate::prefetch::thresholds::FILE_DISORDER_BYTES;

/// The number of readers that are tracked.
const READER_COUNT: usize = 256;

/// Detects sequential readers. Files with the same entry of its small table disturb each other, which costs only speed.
#[derive(Default)]
pub(crate) struct SequentialReadahead {
    /// Allocated at the first read.
    table: Vec<SequentialReader>,
}

/// A reader of a file.
///
/// It cannot be cloned, because two readers would share their progress.
#[derive(Default)]
pub(crate) struct SequentialReader {
    nid: Option<Nid>,
    /// The end of the bytes that it has requested.
    pub(crate) next: u64,
    /// The end of the bytes that were prefetched for it.
    pub(crate) ahead_end: u64,
    /// The number of consecutive reads.
    pub(crate) run: u32,
    progress: Arc<Progress>,
}

/// The position of a reader, for the work that decodes ahead of it.
#[derive(Default)]
struct Progress {
    /// Incremented when the reader goes elsewhere.
    generation: AtomicU64,
    /// The end of the bytes that it has requested, or will request with its next read.
    next: AtomicU64,
}

/// A range to decode ahead of a reader, as long as it does not go elsewhere.
pub(crate) struct Ahead {
    pub(crate) range: ByteRange,
    progress: Arc<Progress>,
    generation_expected: u64,
}

impl Ahead {
    /// Whether the reader went elsewhere.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.progress.generation.load(Relaxed) != self.generation_expected
    }

    /// The number of bytes at the start of the range that the reader has requested meanwhile, or will request before they can
    /// be decoded.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.progress.next.load(Relaxed).saturating_sub(self.range.offset())
    }
}

impl SequentialReadahead {
    /// Notes a read, and returns its reader.
    pub(crate) fn note(&mut self, nid: Nid, range: ByteRange) -> &mut SequentialReader {
        let index = (nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % READER_COUNT;
        if self.table.is_empty() {
            self.table = (0..READER_COUNT).map(|_| SequentialReader::default()).collect();
        }
        let reader = &mut self.table[index];
        let follows = reader.nid == Some(nid)
            && range.offset() <= reader.next + FILE_DISORDER_BYTES
            && range.end() + FILE_DISORDER_BYTES > reader.next;
        if follows {
            // Only reads in exact order continue a run; within the permitted disorder, others shorten it.
            reader.run = if range.offset() == reader.next { reader.run.saturating_add(1) } else { reader.run / 2 };
            reader.next = reader.next.max(range.end());
        } else {
            let progress = Arc::clone(&reader.progress);
            progress.generation.fetch_add(1, Relaxed);
            let run = u32::from(range.offset() == 0);
            *reader = SequentialReader { nid: Some(nid), next: range.end(), ahead_end: 0, run, progress };
        }
        reader.progress.next.store(reader.next + range.len(), Relaxed);
        reader
    }
}

impl SequentialReader {
    /// Notes that `range` is decoded ahead.
    pub(crate) fn read_ahead(&mut self, range: ByteRange) -> Ahead {
        self.ahead_end = range.end();
        let progress = Arc::clone(&self.progress);
        let generation_expected = progress.generation.load(Relaxed);
        Ahead { range, progress, generation_expected }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn consecutive_reads_form_a_run() {
        const KIB: u64 = 1 << 10;
        // The offsets of reads of 4 KiB, and the run after the last one.
        for (name, offsets, run, next) in [
            ("from the beginning", vec![0], 1, 4 * KIB),
            ("from elsewhere", vec![64 * KIB], 0, 68 * KIB),
            ("straight on", vec![0, 4 * KIB, 8 * KIB, 12 * KIB], 4, 16 * KIB),
            ("two that changed places", vec![0, 8 * KIB, 4 * KIB, 12 * KIB], 1, 16 * KIB),
            ("back and forth", vec![0, 512 * KIB, 4 * KIB, 300 * KIB], 0, 516 * KIB),
            ("far away", vec![0, 4 * KIB, 8 * KIB, 3 << 20], 0, (3 << 20) + 4 * KIB),
        ] {
            let mut sequential = SequentialReadahead::default();
            for offset in offsets {
                sequential.note(Nid(7), ByteRange::new(offset, 4 * KIB));
            }
            let reader = &sequential.table.iter().find(|reader| reader.nid.is_some()).expect("noted");
            assert_eq!((reader.run, reader.next), (run, next), "{name}");
        }
    }

    #[test]
    fn a_jump_of_the_reader_cancels_its_window() {
        let mut sequential = SequentialReadahead::default();
        let ahead = sequential.note(Nid(7), ByteRange::new(0, 65536)).read_ahead(ByteRange::new(65536, 1 << 20));
        assert!(!ahead.is_cancelled());
        assert_eq!(ahead.passed_bytes(), 65536, "the next request is anticipated");
        assert_eq!(sequential.note(Nid(7), ByteRange::new(65536, 65536)).ahead_end, ahead.range.end());
        assert_eq!(ahead.passed_bytes(), 2 * 65536);
        assert_eq!(sequential.note(Nid(7), ByteRange::new(1 << 40, 4096)).ahead_end, 0);
        assert!(ahead.is_cancelled());
    }

    #[test]
    fn concurrent_readers_have_separate_runs() {
        const REQUEST: u64 = 64 << 10;
        let mut sequential = SequentialReadahead::default();
        // Two files with entries of their own.
        let ahead = [7, 8].map(|nid| {
            let reader = sequential.note(Nid(nid), ByteRange::new(nid * REQUEST, REQUEST));
            reader.read_ahead(ByteRange::new((nid + 1) * REQUEST, 1 << 20))
        });
        for ahead in &ahead {
            assert!(!ahead.is_cancelled(), "only its own reader cancels a window");
            assert_eq!(ahead.passed_bytes(), REQUEST, "only its own reader passes a window");
        }
        sequential.note(Nid(8), ByteRange::new(1 << 40, REQUEST));
        assert_eq!([false, true], ahead.map(|ahead| ahead.is_cancelled()));
    }
}
