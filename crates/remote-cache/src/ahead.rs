//! Detects sequential readers of an object.

use std::sync::{Mutex, PoisonError};

use crate::layout::ChunkIndex;

/// The number of readers that are distinguished.
const READERS_MAX: usize = 8;

/// The maximum number of chunks fetched ahead of a reader: 16 MiB.
const WINDOW_MAX: u64 = 64;

/// The sequential readers of an object. The window fetched ahead of a reader doubles with each chunk that it advances.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// In the order of their last reads.
    readers: Mutex<Vec<Reader>>,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// The chunk that the reader is expected to read next.
    next: ChunkIndex,
    /// The first chunk that was not requested yet.
    ahead: ChunkIndex,
    window: u64,
}

impl Ahead {
    /// Notes a read of the chunks from `first` to `last`. Returns the first and the last chunk to fetch now, if any.
    pub(crate) fn read(&self, first: ChunkIndex, last: ChunkIndex) -> Option<(ChunkIndex, ChunkIndex)> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_at = |reader: &Reader| first == reader.next || (first < reader.next && first + 1 >= reader.next);
        let Some(place) = readers.iter().position(is_at) else {
            if readers.len() == READERS_MAX {
                readers.remove(0);
            }
            readers.push(Reader { next: last + 1, ahead: last + 1, window: 1 });
            return None;
        };
        if last < readers[place].next {
            return None;
        }
        let mut reader = readers.remove(place);
        reader.next = last + 1;
        reader.ahead = reader.ahead.max(reader.next);
        reader.window = (reader.window * 2).min(WINDOW_MAX);
        // A half at a time, so that requests are large.
        let is_due = reader.ahead - reader.next <= reader.window / 2;
        let wanted = is_due.then(|| (reader.ahead, last + reader.window));
        if is_due {
            reader.ahead = reader.ahead.max(last + reader.window + 1);
        }
        readers.push(reader);
        wanted.filter(|(first, last)| first <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_readers_are_fetched_ahead() {
        let ahead = Ahead::default();
        assert_eq!(ahead.read(5, 5), None);
        assert_eq!(ahead.read(5, 5), None, "the same chunk");
        assert_eq!(ahead.read(6, 6), Some((7, 8)));
        assert_eq!(ahead.read(990, 990), None, "another reader");
        assert_eq!(ahead.read(7, 7), Some((9, 11)));
        assert_eq!(ahead.read(990, 991), Some((992, 993)));
        assert_eq!(ahead.read(8, 8), Some((12, 16)));
        let asked: Vec<_> = (9..200).filter_map(|chunk| ahead.read(chunk, chunk)).collect();
        assert!(asked.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "nothing twice, nothing left out: {asked:?}");
        assert!(asked.iter().all(|(first, last)| last - first < 2 * WINDOW_MAX));
        assert!(asked.len() < 20, "{asked:?}");
    }

    #[test]
    fn scattered_readers_are_not_fetched_ahead() {
        let ahead = Ahead::default();
        for chunk in [900, 3, 70, 68, 500, 20, 1, 3000, 40, 12, 900_000, 8] {
            assert_eq!(ahead.read(chunk, chunk), None, "{chunk}");
        }
    }
}
