//! Detects readers that read file after file in the order of the directory.

use floe_image::Nid;

use crate::{
    metrics::moving_share::MovingShare,
    prefetch::thresholds::{
        FILE_BYTES_MAX, FILES_MAX, MARKER_BATCHES, MARKER_FILES, WALK_DISORDER, WALK_RECENT_READS, WALK_SIGNS,
    },
};

/// The number of listed files that are remembered: the last ones.
const LISTED_MAX: usize = 1 << 14;

/// The number of entries of their hash table. Files with the same entry disturb each other, which costs only speed.
const SLOT_COUNT: usize = 2 * LISTED_MAX;

/// A regular file that was listed to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedFile {
    /// The file.
    pub nid: Nid,
    /// Its size in bytes.
    pub size: u64,
}

/// Detects readers that read file after file in the order of the directory, as copies, backups and searches do.
///
/// The detector sees only the first read of each file, and no read of a file that is in the kernel's page cache.
/// Therefore most batches omit one file, the marker, like the page that the kernel marks for its own readahead. A read
/// of the marker shows that the walk continues, and the next batch is read ahead. If no marker is read, readahead
/// stops.
pub(crate) struct DirectoryReadahead {
    /// The files that were listed last. Once it is full, a new file replaces the oldest.
    ring: Vec<Entry>,
    /// The number of files listed so far.
    listed_count: usize,
    /// For each hash of a file, its position among all listed files, counted from 1; 0 if there is none.
    slots: Vec<u32>,
    listing_count: u32,
    read_count: u32,
    walking_share: MovingShare,
    batches_without_marker: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    file: ListedFile,
    /// The directory and the number of its listing. Only files with equal values are in one walk.
    listing: (Nid, u32),
    seen: Seen,
}

/// The state of a listed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// It was listed only.
    Listed,
    /// It is or was read ahead.
    Ahead,
    /// It was left out of a batch.
    Marker,
    /// Its beginning was read. The number counts the files read until then.
    Read(u32),
}

/// A file to read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AheadFile {
    pub(crate) file: ListedFile,
    /// Its position among all listed files.
    pub(crate) position: usize,
}

/// The first read of a listed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// The position of the file among all listed files.
    pub(crate) position: usize,
    /// Whether it was left out of a batch. Its reader has then used the batch.
    pub(crate) is_marker: bool,
    /// The share of recent signs that indicate a walk, in units of 1 / [`MovingShare::WHOLE`].
    pub(crate) walking_share: u32,
}

impl Default for DirectoryReadahead {
    fn default() -> Self {
        Self {
            ring: Vec::new(),
            listed_count: 0,
            slots: Vec::new(),
            listing_count: 0,
            read_count: 0,
            walking_share: MovingShare::new(WALK_SIGNS, 0),
            batches_without_marker: 0,
        }
    }
}

impl DirectoryReadahead {
    /// Notes files of a directory, in the order of its listing. `is_beginning` says that they are the first of the listing.
    pub(crate) fn note_listed(&mut self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        self.listing_count = self.listing_count.wrapping_add(u32::from(is_beginning));
        let listing = (directory, self.listing_count);
        for file in files {
            self.push(Entry { file: *file, listing, seen: Seen::Listed });
        }
    }

    /// Notes that the beginning of a file is read; `None` if the file was not listed recently.
    pub(crate) fn note_read(&mut self, nid: Nid) -> Option<Arrival> {
        let position = self.position(nid)?;
        let is_marker = self.note_signs(position);
        Some(Arrival { position, is_marker, walking_share: self.walking_share.get() })
    }

    /// Whether a file is still to be read ahead: no reader has reached it.
    pub(crate) fn is_wanted(&self, ahead: &AheadFile) -> bool {
        self.entry(ahead.position).is_some_and(|entry| entry.file == ahead.file && entry.seen == Seen::Ahead)
    }

    fn push(&mut self, entry: Entry) {
        if self.slots.is_empty() {
            self.slots = vec![0; SLOT_COUNT];
        }
        match self.ring.get_mut(self.listed_count % LISTED_MAX) {
            Some(oldest) => *oldest = entry,
            None => self.ring.push(entry),
        }
        self.listed_count += 1;
        self.slots[slot_of(entry.file.nid)] = self.listed_count as u32;
    }

    /// The position of a file among all listed files.
    fn position(&self, nid: Nid) -> Option<usize> {
        let count = self.slots.get(slot_of(nid)).filter(|count| **count > 0)?;
        // The number of files listed since then. Only its low 32 bits are known, so the entry in the ring is compared.
        let since = (self.listed_count as u32).wrapping_sub(*count) as usize;
        let position = self.listed_count.checked_sub(since + 1)?;
        self.entry(position).filter(|entry| entry.file.nid == nid).map(|_| position)
    }

    fn entry(&self, position: usize) -> Option<&Entry> {
        let is_there = position < self.listed_count && self.listed_count - position <= self.ring.len();
        if is_there { self.ring.get(position % LISTED_MAX) } else { None }
    }

    fn mark(&mut self, position: usize, seen: Seen) {
        self.ring[position % LISTED_MAX].seen = seen;
    }

    /// Notes the first read of a file as a sign for or against a walk. Returns whether the file was a marker.
    fn note_signs(&mut self, position: usize) -> bool {
        let Some(Entry { listing, seen, .. }) = self.entry(position).copied() else { return false };
        self.read_count = self.read_count.wrapping_add(1);
        self.mark(position, Seen::Read(self.read_count));
        if seen == Seen::Marker {
            // Two signs for a walk: one for this read, and one that cancels the sign against a walk from when the
            // marker was left out.
            self.walking_share.note(true);
            self.walking_share.note(true);
            return true;
        }
        let (mut is_first, mut is_read, mut is_ahead) = (true, false, false);
        for before in (1..=WALK_DISORDER).map_while(|distance| self.entry(position.checked_sub(distance)?)) {
            if before.listing != listing {
                break;
            }
            is_first = false;
            is_read |= matches!(before.seen, Seen::Read(at) if self.read_count.wrapping_sub(at) <= WALK_RECENT_READS);
            is_ahead |= before.seen == Seen::Ahead;
        }
        // The first file of a directory is no sign, and neither is a file after files that were read ahead.
        if is_read {
            self.walking_share.note(true);
        } else if !is_first && !is_ahead {
            self.walking_share.note(false);
        }
        false
    }

    /// The next files of the same directory to read ahead, at most `window_bytes` or [`FILES_MAX`] of them. None if they are
    /// less than half of both and the directory has more: the next batch comes when half of the window is used up.
    pub(crate) fn batch_after(&mut self, position: usize, window_bytes: u64) -> Vec<AheadFile> {
        let Some(listing) = self.entry(position).map(|entry| entry.listing) else { return Vec::new() };
        let (mut batch, mut passed_bytes, mut batch_bytes) = (Vec::new(), 0, 0);
        let mut next = position + 1;
        let is_end = loop {
            let Some(entry) = self.entry(next).filter(|entry| entry.listing == listing) else { break true };
            let size = entry.file.size.min(FILE_BYTES_MAX);
            if passed_bytes + size > window_bytes || next - position > FILES_MAX {
                break false;
            }
            passed_bytes += size;
            if entry.seen == Seen::Listed && entry.file.size <= FILE_BYTES_MAX {
                batch_bytes += size;
                batch.push(AheadFile { file: entry.file, position: next });
            }
            next += 1;
        };
        let is_half = batch_bytes >= window_bytes / 2 || batch.len() >= FILES_MAX / 2;
        if batch.is_empty() || !(is_end || is_half) {
            return Vec::new();
        }
        self.leave_marker(&mut batch, batch_bytes);
        batch.iter().for_each(|ahead| self.mark(ahead.position, Seen::Ahead));
        batch
    }

    /// Leaves out a file in the middle of a batch if a marker is due.
    fn leave_marker(&mut self, batch: &mut Vec<AheadFile>, batch_bytes: u64) {
        self.batches_without_marker += 1;
        let is_due = batch.len() >= MARKER_FILES || self.batches_without_marker >= MARKER_BATCHES;
        if batch.len() < 2 || !is_due {
            return;
        }
        let mut bytes = 0;
        let is_middle = |ahead: &AheadFile| {
            bytes += ahead.file.size;
            bytes * 2 >= batch_bytes
        };
        let index = batch.iter().position(is_middle).unwrap_or(0);
        let marker = batch.remove(index);
        self.mark(marker.position, Seen::Marker);
        self.batches_without_marker = 0;
        self.walking_share.note(false);
    }
}

fn slot_of(nid: Nid) -> usize {
    (nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SLOT_COUNT
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::prefetch::thresholds::{WALK_SHARE_MIN, WINDOW_MAX};

    const SIZE: u64 = 10_000;

    fn files(nids: std::ops::Range<u64>) -> Vec<ListedFile> {
        nids.map(|nid| ListedFile { nid: Nid(nid), size: SIZE }).collect()
    }

    /// Notes a read, and returns the files to read ahead if a walk is detected.
    fn note(walks: &mut DirectoryReadahead, nid: u64) -> Vec<AheadFile> {
        let walk = walks.note_read(Nid(nid)).filter(|arrival| arrival.walking_share >= WALK_SHARE_MIN);
        walk.map_or(Vec::new(), |arrival| walks.batch_after(arrival.position, 256 << 10))
    }

    /// Reads the files in this order as the kernel would, and returns how many it requested.
    fn read(walks: &mut DirectoryReadahead, nids: impl Iterator<Item = u64>, cached: &mut HashSet<u64>) -> usize {
        let mut asked_count = 0;
        for nid in nids {
            if cached.insert(nid) {
                asked_count += 1;
                for ahead in note(walks, nid) {
                    assert!(cached.insert(ahead.file.nid.0), "nothing twice");
                }
            }
        }
        asked_count
    }

    fn walking() -> (DirectoryReadahead, HashSet<u64>) {
        let (mut walks, mut cached) = (DirectoryReadahead::default(), HashSet::new());
        walks.note_listed(Nid(1 << 40), true, &files(0..100));
        let asked_count = read(&mut walks, 0..100, &mut cached);
        assert!((20..40).contains(&asked_count), "{asked_count}");
        (walks, cached)
    }

    #[test]
    fn a_walk_in_directory_order_needs_few_requests() {
        let (mut walks, mut cached) = walking();
        walks.note_listed(Nid(1 << 41), true, &files(1_000..2_000));
        walks.note_listed(Nid(1 << 41), false, &files(2_000..3_000));
        let asked_count = read(&mut walks, 1_000..3_000, &mut cached);
        assert!(asked_count < 200, "{asked_count}");
    }

    #[test]
    fn tiny_files_do_not_fill_a_large_window() {
        let (mut walks, _) = walking();
        let tiny: Vec<ListedFile> = (1_000..3_000).map(|nid| ListedFile { nid: Nid(nid), size: 500 }).collect();
        walks.note_listed(Nid(1 << 41), true, &tiny);
        let arrival = walks.note_read(Nid(1_000)).expect("it was listed");
        let batch = walks.batch_after(arrival.position, WINDOW_MAX);
        assert_eq!(batch.len(), FILES_MAX - 1, "all of the window but the marker");
        let arrival = walks.note_read(batch[FILES_MAX / 4].file.nid).expect("it was listed");
        assert!(walks.batch_after(arrival.position, WINDOW_MAX).is_empty(), "most of the window is not used up");
        let arrival = walks.note_read(batch[FILES_MAX * 3 / 4].file.nid).expect("it was listed");
        assert!(walks.batch_after(arrival.position, WINDOW_MAX).len() >= FILES_MAX / 2);
    }

    #[test]
    fn a_batch_ends_with_its_directory_and_omits_read_files() {
        let (mut walks, _) = walking();
        walks.note_listed(Nid(1 << 41), true, &files(1_000..1_008));
        walks.note_listed(Nid(1 << 42), true, &files(2_000..2_008));
        let batch = note(&mut walks, 1_000);
        assert!((5..=7).contains(&batch.len()) && batch.iter().all(|ahead| ahead.file.nid.0 < 1_008), "{batch:?}");
        assert!(walks.is_wanted(&batch[0]));
        assert!(note(&mut walks, batch[0].file.nid.0).is_empty());
        assert!(!walks.is_wanted(&batch[0]) && walks.is_wanted(&batch[1]));
        let large = ListedFile { nid: Nid(3_000), size: FILE_BYTES_MAX + 1 };
        walks.note_listed(Nid(1 << 43), true, &[files(2_999..3_000), vec![large]].concat());
        assert!(note(&mut walks, 2_999).is_empty(), "large files are not read ahead");
    }

    #[test]
    fn scattered_reads_cause_no_directory_readahead() {
        let mut walks = DirectoryReadahead::default();
        walks.note_listed(Nid(1 << 40), true, &files(0..10_000));
        for index in 0..1_000 {
            assert!(note(&mut walks, index * 7_919 % 10_000).is_empty());
        }
        assert!(note(&mut walks, 77_777).is_empty(), "it was not listed");
    }

    #[test]
    fn reading_one_file_per_directory_ends_the_walk() {
        let (mut walks, _) = walking();
        let mut batch_count = 0;
        for directory in 0..100 {
            let first = 1_000 + directory * 10;
            walks.note_listed(Nid((1 << 41) + directory), true, &files(first..first + 10));
            batch_count += usize::from(!note(&mut walks, first).is_empty());
        }
        assert!(batch_count < 10, "{batch_count}");
    }

    #[test]
    fn the_files_listed_last_are_remembered() {
        let mut walks = DirectoryReadahead::default();
        let count = 3 * LISTED_MAX as u64 + 5;
        walks.note_listed(Nid(1 << 40), true, &files(0..count));
        assert_eq!(walks.ring.len(), LISTED_MAX);
        assert_eq!(walks.position(Nid(5)), None);
        let found = (count - LISTED_MAX as u64..count).filter(|nid| walks.position(Nid(*nid)) == Some(*nid as usize));
        assert!(found.count() > LISTED_MAX / 2, "except files that share an entry of the table");
    }
}
