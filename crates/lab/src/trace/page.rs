//! Parses pages of the kernel's trace ring buffer, as read from `trace_pipe_raw`.
//!
//! A page begins with the time of its first record and the number of bytes in use, as described by tracefs'
//! `header_page`. High bits of that number report records lost before the page. Each record has a header of four bytes:
//! five bits of type or length, and 27 bits of nanoseconds since the previous record.

use super::format::Field;
use crate::{Error, Result};

/// The bits of the commit field that hold the bytes in use.
const COMMIT_MASK: u64 = 0x000f_ffff;
/// Set if records were lost before this page.
const MISSED_EVENTS: u64 = 1 << 31;
/// Set if the number of lost records follows the data.
const MISSED_STORED: u64 = 1 << 30;

const TYPE_PADDING: u32 = 29;
const TYPE_TIME_EXTEND: u32 = 30;
const TYPE_TIME_STAMP: u32 = 31;
/// The size of a time delta in bits.
const DELTA_BITS: u32 = 27;
/// An absolute timestamp has 59 bits; the upper bits come from the previous time.
const TIME_STAMP_MASK: u64 = (1 << 59) - 1;

/// The layout of a page, from tracefs' `header_page`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLayout {
    timestamp: Field,
    commit: Field,
    data_offset: usize,
    page_size: usize,
}

/// A page with a parsed header and unparsed records.
#[derive(Clone, Copy, Debug)]
pub struct Page<'bytes> {
    /// The time of the first record, in nanoseconds of the trace clock.
    pub time_ns: u64,
    /// The losses before this page.
    pub lost: Lost,
    data: &'bytes [u8],
}

/// Records lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// None.
    Nothing,
    /// This many.
    Counted(u64),
    /// Some; the page had no room for their number.
    Uncounted,
}

/// Iterates over the records of a page: time in nanoseconds, and bytes.
#[derive(Clone, Debug)]
pub struct Records<'bytes> {
    time_ns: u64,
    rest: &'bytes [u8],
}

impl PageLayout {
    /// Parses `header_page`.
    pub fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| Field::parse(line.trim()))
                .find(|field| field.name == name)
                .ok_or_else(|| Error::new(format!("tracefs header_page has no field {name}")))
        };
        let data = field("data")?;
        Ok(Self {
            timestamp: field("timestamp")?,
            commit: field("commit")?,
            data_offset: data.offset,
            page_size: data.offset.saturating_add(data.size),
        })
    }

    /// The page size in bytes.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Parses the header of the page in `bytes`.
    pub fn page<'bytes>(&self, bytes: &'bytes [u8]) -> Result<Page<'bytes>> {
        let corrupt = |rule| Error::new(format!("trace page of {} bytes: {rule}", bytes.len()));
        let time_ns = self.timestamp.integer(bytes).ok_or_else(|| corrupt("no timestamp"))?;
        let commit = self.commit.integer(bytes).ok_or_else(|| corrupt("no commit"))?.cast_unsigned();
        let length = usize::try_from(commit & COMMIT_MASK).map_err(|_| corrupt("commit too large"))?;
        let payload = bytes.get(self.data_offset..).ok_or_else(|| corrupt("no data"))?;
        let (data, after) = payload.split_at_checked(length).ok_or_else(|| corrupt("commit past the end"))?;
        let lost = match (commit & MISSED_EVENTS != 0, commit & MISSED_STORED != 0) {
            (false, _) => Lost::Nothing,
            (true, false) => Lost::Uncounted,
            (true, true) => {
                let size = size_of::<libc::c_ulong>();
                let count = after.get(..size).ok_or_else(|| corrupt("no room for the count of lost records"))?;
                Lost::Counted(if size == 8 { word64(count).unwrap_or(0) } else { u64::from(word(count).unwrap_or(0)) })
            }
        };
        Ok(Page { time_ns: time_ns.cast_unsigned(), lost, data })
    }
}

impl<'bytes> Page<'bytes> {
    /// The number of bytes of records.
    pub fn used(&self) -> usize {
        self.data.len()
    }

    /// The records of the page, oldest first.
    pub fn records(&self) -> Records<'bytes> {
        Records { time_ns: self.time_ns, rest: self.data }
    }
}

impl<'bytes> Iterator for Records<'bytes> {
    type Item = Result<(u64, &'bytes [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.step() {
                Some(Step::Record(record)) => return Some(Ok((self.time_ns, record))),
                Some(Step::Time) => {}
                Some(Step::End) => break,
                None => {
                    self.rest = &[];
                    return Some(Err(Error::new("trace page: a record runs past the data")));
                }
            }
        }
        None
    }
}

enum Step<'bytes> {
    Record(&'bytes [u8]),
    Time,
    End,
}

impl<'bytes> Records<'bytes> {
    /// Consumes a header and its data; `None` if the data is too short for a header.
    fn step(&mut self) -> Option<Step<'bytes>> {
        let header = word(self.rest)?;
        let (kind, delta) = (header & 31, u64::from(header >> 5));
        let body = self.rest.get(4..)?;
        let (step, body_length) = match kind {
            TYPE_PADDING if delta == 0 => (Step::End, body.len()),
            TYPE_PADDING => {
                self.time_ns = self.time_ns.wrapping_add(delta);
                (Step::Time, usize::try_from(word(body)?).ok()?)
            }
            TYPE_TIME_EXTEND => {
                let high = u64::from(word(body)?) << DELTA_BITS;
                self.time_ns = self.time_ns.wrapping_add(high | delta);
                (Step::Time, 4)
            }
            TYPE_TIME_STAMP => {
                let low = (u64::from(word(body)?) << DELTA_BITS | delta) & TIME_STAMP_MASK;
                self.time_ns = (self.time_ns & !TIME_STAMP_MASK) | low;
                (Step::Time, 4)
            }
            0 => {
                let length = usize::try_from(word(body)?).ok()?;
                self.time_ns = self.time_ns.wrapping_add(delta);
                (Step::Record(body.get(4..length)?), length)
            }
            words => {
                let length = usize::try_from(words).ok()?.checked_mul(4)?;
                self.time_ns = self.time_ns.wrapping_add(delta);
                (Step::Record(body.get(..length)?), length)
            }
        };
        self.rest = body.get(body_length..)?;
        Some(step)
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn word64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout() -> PageLayout {
        PageLayout::parse(include_str!("../../fixtures/header_page.txt")).unwrap()
    }

    fn page(time_ns: u64, commit: u64, words: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(time_ns.to_ne_bytes());
        bytes.extend(commit.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(4096, 0);
        bytes
    }

    fn header(kind: u32, delta: u32) -> u32 {
        kind | delta << 5
    }

    #[test]
    fn each_kind_of_record_is_read() {
        // The words of a page, then time after 1000 ns and length of each record.
        type Row = (&'static [u32], &'static [(u64, usize)]);
        let rows: &[Row] = &[
            (&[], &[]),
            (&[2 | 5 << 5, 7, 8], &[(5, 8)]),
            (&[1, 7, 1 | 1 << 5, 8], &[(0, 4), (1, 4)]),
            // A long record: its length includes the word that holds it.
            (&[3 << 5, 12, 7, 8], &[(3, 8)]),
            // Time extended by 2^27 + 4.
            (&[30 | 4 << 5, 1, 1 | 1 << 5, 9], &[((1 << 27) + 5, 4)]),
            // A discarded record between two others.
            (&[1, 7, 29 | 2 << 5, 8, 0, 1 | 1 << 5, 8], &[(0, 4), (3, 4)]),
            // The rest of the page is empty.
            (&[1, 7, 29, 8, 0, 1], &[(0, 4)]),
        ];
        for (words, expected) in rows {
            let bytes = page(1000, u64::try_from(words.len() * 4).unwrap(), words);
            let page = layout().page(&bytes).unwrap();
            let records: Vec<_> = page.records().map(|r| r.map(|(t, d)| (t - 1000, d.len())).unwrap()).collect();
            assert_eq!(&records, expected, "{words:?}");
        }
    }

    #[test]
    fn an_absolute_time_keeps_the_high_bits() {
        let base = (3 << 59) | 77;
        let bytes = page(base, 16, &[header(31, 5), 2, header(1, 1), 0]);
        let records: Vec<_> = layout().page(&bytes).unwrap().records().map(Result::unwrap).collect();
        assert_eq!(records[0].0, (3 << 59) | ((2 << 27 | 5) + 1));
    }

    #[test]
    fn losses_are_reported() {
        let mut counted = page(0, 4 | MISSED_EVENTS | MISSED_STORED, &[29]);
        counted[20..28].copy_from_slice(&1234_u64.to_ne_bytes());
        let rows = [
            (page(0, 4, &[29]), Lost::Nothing),
            (page(0, 4 | MISSED_EVENTS, &[29]), Lost::Uncounted),
            (counted, Lost::Counted(1234)),
        ];
        for (bytes, expected) in rows {
            assert_eq!(layout().page(&bytes).unwrap().lost, expected);
        }
    }

    #[test]
    fn broken_pages_are_errors() {
        let rows =
            [page(0, 5000, &[]), page(0, 0, &[])[..15].to_vec(), page(0, 4080 | MISSED_EVENTS | MISSED_STORED, &[])];
        for bytes in rows {
            assert!(layout().page(&bytes).is_err());
        }
        for words in [&[header(28, 1), 0][..], &[header(0, 1), 2], &[header(0, 1), 4096], &[header(30, 1)]] {
            let bytes = page(0, u64::try_from(words.len() * 4).unwrap(), words);
            let last = layout().page(&bytes).unwrap().records().last();
            assert!(last.unwrap().is_err(), "{words:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_loop(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut whole = vec![0; 8];
            whole.extend(u64::try_from(bytes.len()).unwrap().to_ne_bytes());
            whole.extend(&bytes);
            let count = layout().page(&whole).unwrap().records().count();
            prop_assert!(count <= bytes.len() / 4 + 1);
            let _ = layout().page(&bytes).map(|page| page.records().count());
        }
    }
}
