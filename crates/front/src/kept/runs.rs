//! The index of a kept image: the files behind addresses of data.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, sync::OnceLock};

use floe_image::{ByteRange, Nid};

use crate::geometry::{BLOCK_BYTES, KEPT_DATA_BLOCK, LARGE_BLOCK, LARGE_BLOCK_COUNT, META_BLOCK};

/// The size of a record of the index.
const RECORD_BYTES: usize = 16;

/// The number of records that are read or written at a time.
const RECORDS_STEP: usize = 1 << 14;

/// The number of blocks that the data of small files can have: that many of its device have addresses in the kept image.
const IMAGE_BLOCK_COUNT_MAX: u32 = META_BLOCK - KEPT_DATA_BLOCK;

/// A record of the index. Of a run: its first block, the nid of the file in the kept image, and that in the original. Of an
/// offset: the first block of the run, zero, and the offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    start: u32,
    front_nid: u32,
    number: u64,
}

/// A run of file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeptRun {
    /// Its blocks, in block numbers that cover both devices.
    pub(crate) blocks: (u64, u64),
    /// The file in the original.
    pub(crate) nid: Nid,
    /// The file in the kept image.
    pub(crate) front_nid: u64,
    /// The offset in the file of its first byte.
    pub(crate) offset: u64,
}

/// Where the index is, and what it consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IndexPlace {
    /// The offset of the first record.
    pub(super) start: u64,
    /// The number of runs of the data of small files; the index begins with them.
    pub(super) image_runs: u64,
    /// The number of runs of the data of large files, which follow.
    pub(super) large_runs: u64,
    /// The number of offsets, which follow: those of the runs that do not begin their files.
    pub(super) offsets: u64,
    /// The first block of each device that is free.
    pub(super) image_free: u32,
    pub(super) large_free: u32,
}

/// The index in memory.
#[derive(Default)]
pub(crate) struct KeptRuns {
    image: Region,
    large: Region,
    /// Sorted by the first block. All belong to small files.
    offsets: Vec<Record>,
    /// The numbers of all runs in the order of their files.
    by_file: OnceLock<Vec<u32>>,
}

/// The runs of one device, by address.
#[derive(Default)]
struct Region {
    runs: Vec<Record>,
    free: u32,
}

impl KeptRuns {
    /// Gives addresses on the device of small files to `size` bytes, at least one, of a file from `offset` on: the first block.
    /// `None` if there is no room.
    pub(super) fn assign(&mut self, nid: Nid, front_nid: u32, offset: u64, size: u64) -> Option<u32> {
        let start = self.image.assign(nid, front_nid, size, IMAGE_BLOCK_COUNT_MAX)?;
        if offset > 0 {
            self.offsets.push(Record { start, front_nid: 0, number: offset });
        }
        Some(start)
    }

    /// Gives addresses on the device of large files to a file.
    pub(super) fn assign_large(&mut self, nid: Nid, front_nid: u32, size: u64) -> Option<u32> {
        self.large.assign(nid, front_nid, size, LARGE_BLOCK_COUNT)
    }

    /// The size of the index in the file.
    pub(super) fn stored_bytes(&self) -> u64 {
        ((self.image.runs.len() + self.large.runs.len() + self.offsets.len()) * RECORD_BYTES) as u64
    }

    /// Writes the index to `file` from `start` on.
    pub(super) fn write(&self, file: &File, start: u64) -> io::Result<IndexPlace> {
        let (mut position, mut part) = (start, Vec::new());
        for record in self.image.runs.iter().chain(&self.large.runs).chain(&self.offsets) {
            part.extend(record.to_bytes());
            if part.len() >= RECORDS_STEP * RECORD_BYTES {
                file.write_all_at(&part, position)?;
                position += part.len() as u64;
                part.clear();
            }
        }
        file.write_all_at(&part, position)?;
        Ok(IndexPlace {
            start,
            image_runs: self.image.runs.len() as u64,
            large_runs: self.large.runs.len() as u64,
            offsets: self.offsets.len() as u64,
            image_free: self.image.free,
            large_free: self.large.free,
        })
    }

    /// Reads the index. `None` if its records are not in order.
    pub(super) fn read(file: &File, place: &IndexPlace) -> io::Result<Option<Self>> {
        let IndexPlace { start, image_runs, large_runs, offsets, image_free, large_free } = *place;
        let large_start = start + image_runs * RECORD_BYTES as u64;
        let offsets_start = large_start + large_runs * RECORD_BYTES as u64;
        let runs = Self {
            image: Region { runs: read_records(file, start, image_runs)?, free: image_free },
            large: Region { runs: read_records(file, large_start, large_runs)?, free: large_free },
            offsets: read_records(file, offsets_start, offsets)?,
            by_file: OnceLock::new(),
        };
        let is_sound = runs.image.is_sound() && runs.large.is_sound() && runs.offsets.is_sorted_by_key(Record::start);
        Ok(is_sound.then_some(runs))
    }

    /// The number of blocks of the device of small files: at least 1, because the device of an empty file has no addresses.
    pub(crate) fn image_block_count(&self) -> u32 {
        self.image.free.max(1)
    }

    /// The run that contains `block`, in block numbers that cover both devices.
    pub(crate) fn find(&self, block: u64) -> Option<KeptRun> {
        let (region, base, first) = match block.checked_sub(LARGE_BLOCK) {
            Some(_) => (&self.large, LARGE_BLOCK, self.image.runs.len()),
            None => (&self.image, 0, 0),
        };
        let block = u32::try_from(block - base).ok().filter(|block| *block < region.free)?;
        let index = region.runs.partition_point(|run| run.start <= block).checked_sub(1)?;
        self.run(first + index)
    }

    /// The run with byte `offset` of a file of the original, or the last one before it.
    ///
    /// The first call sorts the runs, which takes four bytes of memory for each.
    pub(crate) fn of_file(&self, nid: Nid, offset: u64) -> Option<KeptRun> {
        let place = |number: &u32| self.run(*number as usize).map(|run| (run.nid, run.offset));
        let by_file = self.by_file.get_or_init(|| {
            let count = self.image.runs.len() + self.large.runs.len();
            let mut numbers: Vec<u32> = (0..count as u32).collect();
            numbers.sort_unstable_by_key(place);
            numbers
        });
        let index = by_file.partition_point(|number| place(number) <= Some((nid, offset))).checked_sub(1)?;
        self.run(*by_file.get(index)? as usize).filter(|run| run.nid == nid)
    }

    /// A run by its number: those of small files come first.
    fn run(&self, number: usize) -> Option<KeptRun> {
        let (region, base, index) = match number.checked_sub(self.image.runs.len()) {
            Some(index) => (&self.large, LARGE_BLOCK, index),
            None => (&self.image, 0, number),
        };
        let Record { start, front_nid, number } = *region.runs.get(index)?;
        let end = region.runs.get(index + 1).map_or(region.free, |next| next.start);
        let is_small = base == 0;
        let offset = self.offsets.binary_search_by_key(&start, Record::start).ok().filter(|_| is_small);
        Some(KeptRun {
            blocks: (base + u64::from(start), base + u64::from(end)),
            nid: Nid(number),
            front_nid: front_nid.into(),
            offset: offset.and_then(|index| self.offsets.get(index)).map_or(0, |record| record.number),
        })
    }
}

impl KeptRun {
    /// The addresses of its bytes.
    pub(crate) fn addresses(&self) -> ByteRange {
        ByteRange::between(self.blocks.0 * BLOCK_BYTES, self.blocks.1 * BLOCK_BYTES)
    }
}

impl Region {
    fn assign(&mut self, nid: Nid, front_nid: u32, size: u64, block_count_max: u32) -> Option<u32> {
        let block_count = u32::try_from(size.div_ceil(BLOCK_BYTES)).ok()?;
        let start = self.free;
        self.free = start.checked_add(block_count).filter(|end| *end <= block_count_max)?;
        self.runs.push(Record { start, front_nid, number: nid.0 });
        Some(start)
    }

    fn is_sound(&self) -> bool {
        let starts: &[Record] = &self.runs;
        let ends: Range<usize> = 0..starts.len();
        ends.into_iter().all(|index| {
            let end = starts.get(index + 1).map_or(self.free, |next| next.start);
            starts.get(index).is_some_and(|run| run.start < end)
        })
    }
}

impl Record {
    fn start(&self) -> u32 {
        self.start
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let number = u128::from(self.number) << 64 | u128::from(self.front_nid) << 32 | u128::from(self.start);
        number.to_le_bytes()
    }

    fn from_bytes(bytes: [u8; RECORD_BYTES]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self { start: number as u32, front_nid: (number >> 32) as u32, number: (number >> 64) as u64 }
    }
}

fn read_records(file: &File, start: u64, count: u64) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut bytes = vec![0; RECORDS_STEP * RECORD_BYTES];
    let mut position = 0;
    while position < count {
        let step = (count - position).min(RECORDS_STEP as u64);
        let part = bytes.get_mut(..step as usize * RECORD_BYTES).unwrap_or_default();
        file.read_exact_at(part, start + position * RECORD_BYTES as u64)?;
        records.reserve_exact(step as usize);
        records.extend(part.as_chunks().0.iter().map(|bytes| Record::from_bytes(*bytes)));
        position += step;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_by_address_and_by_file() {
        let mut runs = KeptRuns::default();
        assert_eq!(runs.assign(Nid(9), 100, 0, 1), Some(0));
        assert_eq!(runs.assign(Nid(3), 101, 0, 8192), Some(1));
        assert_eq!(runs.assign(Nid(3), 101, 1 << 40, 4097), Some(3));
        assert_eq!(runs.assign_large(Nid(5), 102, 1 << 20), Some(0));
        assert_eq!(runs.assign_large(Nid(6), 103, u64::from(LARGE_BLOCK_COUNT) * BLOCK_BYTES), None);
        let file = tempfile::tempfile().expect("a file");
        let place = runs.write(&file, 4096).expect("written");
        assert_eq!(file.metadata().expect("there").len(), 4096 + runs.stored_bytes());
        let read = KeptRuns::read(&file, &place).expect("read").expect("in order");
        let run = |start, end, nid, front_nid, offset| {
            Some(KeptRun { blocks: (start, end), nid: Nid(nid), front_nid, offset })
        };
        let (first, second, third) = (run(0, 1, 9, 100, 0), run(1, 3, 3, 101, 0), run(3, 5, 3, 101, 1 << 40));
        let large = run(LARGE_BLOCK, LARGE_BLOCK + 256, 5, 102, 0);
        for runs in [&runs, &read] {
            let found = [0, 1, 2, 3, 4, 5, LARGE_BLOCK, LARGE_BLOCK + 255, LARGE_BLOCK + 256].map(|at| runs.find(at));
            assert_eq!(found, [first, second, second, third, third, None, large, large, None]);
            let places = [(9, 0), (3, 0), (3, 1 << 39), (3, 1 << 40), (5, 77), (4, 0), (10, 0), (0, 0)];
            let found = places.map(|(nid, offset)| runs.of_file(Nid(nid), offset));
            assert_eq!(found, [first, second, second, third, large, None, None, None]);
            assert_eq!(runs.image_block_count(), 5);
        }
        let wrong = IndexPlace { image_free: 3, ..place };
        assert!(KeptRuns::read(&file, &wrong).expect("read").is_none());
    }
}
