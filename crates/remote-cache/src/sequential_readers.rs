//! Detects sequential readers of an object.

use floe_image::ByteRange;
use floe_sync::Mutex;

use crate::SECTION_BYTES;

/// The number of readers that are distinguished.
const READERS_MAX: usize = 8;

/// The maximum number of sections fetched ahead of a reader: 16 MiB.
const WINDOW_SECTIONS_MAX: u64 = 64;

/// A reader is sequential only if it reads at least one in this many of the bytes that it passes.
const SEQUENTIAL_PART: u64 = 2;

/// A reader is sequential only once it has read as many bytes. Files of some hundred KiB are often adjacent by chance.
const SEQUENTIAL_BYTES_MIN: u64 = 2 * SECTION_BYTES;

/// The sequential readers of an object. The window fetched ahead of a reader doubles with each section that it advances.
#[derive(Debug, Default)]
pub(crate) struct SequentialReaders {
    /// In the order of their last reads.
    readers: Mutex<Vec<Reader>>,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// The section that the reader is expected to read next.
    next: u64,
    /// The first section that was not requested yet.
    ahead: u64,
    /// In sections.
    window: u64,
    /// Where it began to read, and how many bytes it has read since.
    start: u64,
    bytes: u64,
}

impl Reader {
    /// A reader that begins with this read.
    fn new(range: ByteRange) -> Self {
        let next = (range.end() - 1) / SECTION_BYTES + 1;
        Self { next, ahead: next, window: 1, start: range.offset(), bytes: range.len() }
    }
}

impl SequentialReaders {
    /// Notes a read, which is not empty. Returns the bytes to fetch now, if any.
    pub(crate) fn read(&self, range: ByteRange) -> Option<ByteRange> {
        let (first, last) = (range.offset() / SECTION_BYTES, (range.end() - 1) / SECTION_BYTES);
        let mut readers = self.readers.lock();
        let is_at = |reader: &Reader| first == reader.next || (first < reader.next && first + 1 >= reader.next);
        let Some(place) = readers.iter().position(is_at) else {
            if readers.len() == READERS_MAX {
                readers.remove(0);
            }
            readers.push(Reader::new(range));
            return None;
        };
        readers[place].bytes += range.len();
        if last < readers[place].next {
            return None;
        }
        let mut reader = readers.remove(place);
        if reader.bytes * SEQUENTIAL_PART < range.end().saturating_sub(reader.start) {
            // It only passes by.
            readers.push(Reader::new(range));
            return None;
        }
        reader.next = last + 1;
        reader.ahead = reader.ahead.max(reader.next);
        if reader.bytes < SEQUENTIAL_BYTES_MIN {
            readers.push(reader);
            return None;
        }
        reader.window = (reader.window * 2).min(WINDOW_SECTIONS_MAX);
        // A half at a time, so that requests are large.
        let is_due = reader.ahead - reader.next <= reader.window / 2;
        let wanted = is_due
            .then(|| ByteRange::between(reader.ahead * SECTION_BYTES, (last + reader.window + 1) * SECTION_BYTES));
        if is_due {
            reader.ahead = reader.ahead.max(last + reader.window + 1);
        }
        readers.push(reader);
        wanted.filter(|wanted| !wanted.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads whole sections. Returns the first and the last section to fetch.
    fn read(readers: &SequentialReaders, first: u64, last: u64) -> Option<(u64, u64)> {
        let ahead = readers.read(ByteRange::between(first * SECTION_BYTES, (last + 1) * SECTION_BYTES))?;
        assert!(ahead.offset().is_multiple_of(SECTION_BYTES) && ahead.end().is_multiple_of(SECTION_BYTES));
        Some((ahead.offset() / SECTION_BYTES, ahead.end() / SECTION_BYTES - 1))
    }

    #[test]
    fn sequential_readers_are_fetched_ahead() {
        let readers = SequentialReaders::default();
        let read = |first, last| read(&readers, first, last);
        assert_eq!(read(5, 5), None);
        assert_eq!(read(5, 5), None, "the same section");
        assert_eq!(read(6, 6), Some((7, 8)));
        assert_eq!(read(990, 990), None, "another reader");
        assert_eq!(read(7, 7), Some((9, 11)));
        assert_eq!(read(990, 991), Some((992, 993)));
        assert_eq!(read(8, 8), Some((12, 16)));
        let asked: Vec<_> = (9..200).filter_map(|section| read(section, section)).collect();
        assert!(asked.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "nothing twice, nothing left out: {asked:?}");
        assert!(asked.iter().all(|(first, last)| last - first < 2 * WINDOW_SECTIONS_MAX));
        assert!(asked.len() < 20, "{asked:?}");
    }

    #[test]
    fn scattered_readers_are_not_fetched_ahead() {
        let readers = SequentialReaders::default();
        for section in [900, 3, 70, 68, 500, 20, 1, 3000, 40, 12, 900_000, 8] {
            assert_eq!(read(&readers, section, section), None, "{section}");
        }
        // Neither are those that read a little of each section.
        for section in 100..130 {
            let small = ByteRange::new(section * SECTION_BYTES + 77, 4096);
            assert_eq!(readers.read(small), None, "{section}");
        }
        assert!(read(&readers, 130, 131).is_some(), "from here on, it reads all");
    }

    #[test]
    fn a_reader_is_sequential_once_it_has_read_enough() {
        const READ_BYTES: u64 = 96 << 10;
        let readers = SequentialReaders::default();
        let read = |index: u64| readers.read(ByteRange::new((40 << 20) + index * READ_BYTES, READ_BYTES));
        let first = (0..).find(|index| read(*index).is_some()).expect("it is sequential");
        assert!((SEQUENTIAL_BYTES_MIN..2 * SEQUENTIAL_BYTES_MIN).contains(&((first + 1) * READ_BYTES)), "{first}");
    }
}
