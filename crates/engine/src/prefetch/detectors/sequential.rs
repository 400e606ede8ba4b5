//! Which readers go straight on.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{ByteRange, Nid};

/// How many readers are told apart.
const STREAM_COUNT: usize = 256;

/// What is read ahead at first, and at most, in bytes.
const WINDOW_MIN: u64 = 128 << 10;
const WINDOW_MAX: u64 = 2 << 20;

/// Requests of one reader come in an order that differs so much, in bytes, from that of the file.
const DISORDER_MAX: u64 = 1 << 20;

/// So many requests must follow one another before a reader is taken to go straight on.
const RUN_MIN: u32 = 2;

/// Which readers go straight on, and how far ahead of each it was read. Files are told apart by a small table; two that
/// meet in it disturb each other, which costs speed alone.
pub(crate) struct Streams {
    table: Vec<Stream>,
}

#[derive(Clone, Default)]
struct Stream {
    nid: Option<Nid>,
    next: u64,
    ahead_end: u64,
    window: u64,
    run: u32,
    progress: Arc<Progress>,
}

/// How far a reader is, for those who read ahead of it.
#[derive(Default)]
struct Progress {
    /// Counts how often the reader went elsewhere.
    generation: AtomicU64,
    /// It asked for everything before this byte, or is about to.
    next: AtomicU64,
}

/// What is to be read ahead of a reader, as long as it does not go elsewhere.
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

    /// How many bytes of the range the reader has asked for meanwhile, or will have before they can be decoded.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.progress.next.load(Relaxed).saturating_sub(self.range.offset())
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self { table: vec![Stream::default(); STREAM_COUNT] }
    }
}

impl Streams {
    /// Notes a read; gives what to read ahead of it.
    pub(crate) fn note(&mut self, nid: Nid, range: ByteRange) -> Option<Ahead> {
        let index = (nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STREAM_COUNT;
        let stream = self.table.get_mut(index)?;
        let follows = stream.nid == Some(nid)
            && range.offset() <= stream.next + DISORDER_MAX
            && range.end() + DISORDER_MAX > stream.next;
        if !follows {
            let progress = Arc::clone(&stream.progress);
            progress.generation.fetch_add(1, Relaxed);
            progress.next.store(range.end() + range.len(), Relaxed);
            *stream = Stream {
                nid: Some(nid),
                next: range.end(),
                ahead_end: 0,
                window: WINDOW_MIN,
                run: u32::from(range.offset() == 0),
                progress,
            };
            return None;
        }
        // A reader that jumps about within the disorder that is allowed does not go straight on.
        stream.run = if range.offset() == stream.next { stream.run.saturating_add(1) } else { stream.run / 2 };
        stream.next = stream.next.max(range.end());
        stream.progress.next.store(stream.next + range.len(), Relaxed);
        if stream.run < RUN_MIN {
            return None;
        }
        stream.window = (stream.window * 2).max(2 * range.len()).min(WINDOW_MAX);
        let start = stream.ahead_end.max(stream.next);
        let end = stream.next + stream.window;
        // Small steps are not worth the work: the next one comes when half of the window is used up.
        if start + stream.window / 2 > end {
            return None;
        }
        stream.ahead_end = end;
        let progress = Arc::clone(&stream.progress);
        let generation_expected = progress.generation.load(Relaxed);
        Some(Ahead { range: ByteRange::between(start, end), progress, generation_expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(streams: &mut Streams, offset: u64, len: u64) -> Option<ByteRange> {
        streams.note(Nid(7), ByteRange::new(offset, len)).map(|ahead| ahead.range)
    }

    #[test]
    fn a_reader_that_goes_straight_on_is_read_ahead_of_without_gaps() {
        let mut streams = Streams::default();
        let mut ahead_end = None;
        for index in 0..200u64 {
            if let Some(range) = read(&mut streams, index * 4096, 4096) {
                assert!(range.offset() >= (index + 1) * 4096);
                assert_eq!(range.offset(), ahead_end.unwrap_or(range.offset()), "nothing twice, nothing left out");
                assert!(range.end() <= (index + 1) * 4096 + WINDOW_MAX);
                ahead_end = Some(range.end());
            }
        }
        assert!(ahead_end.is_some());
    }

    #[test]
    fn a_reader_that_jumps_is_not() {
        let mut streams = Streams::default();
        for index in 0..100u64 {
            assert_eq!(read(&mut streams, (index * 7919 % 101) * (3 << 20), 4096), None);
        }
    }

    #[test]
    fn going_elsewhere_cancels() {
        let mut streams = Streams::default();
        let ahead =
            (0..10).find_map(|index| streams.note(Nid(7), ByteRange::new(index * 65536, 65536))).expect("a run");
        assert!(!ahead.is_cancelled());
        assert_eq!(ahead.passed_bytes(), 65536, "the next request is not waited for");
        streams.note(Nid(7), ByteRange::new(ahead.range.offset(), 65536));
        assert_eq!(ahead.passed_bytes(), 2 * 65536);
        assert!(streams.note(Nid(7), ByteRange::new(1 << 40, 4096)).is_none());
        assert!(ahead.is_cancelled());
    }
}
