//! The file of a kept image while it is written.

use std::{collections::VecDeque, fs::File, io, os::unix::fs::FileExt};

use floe_erofs::format::INODE_SLOT_SIZE;

use super::not_kept::NotKept;
use crate::geometry::BLOCK_BYTES;

/// The number of bytes at the end of the file that are collected before they are written.
const COLLECTED_BYTES_MAX: usize = 1 << 18;

/// The number of the last gaps that are remembered: what fills them stays close to its neighbours.
const GAPS_MAX: usize = 32;

/// The file of a kept image. Its bytes are taken from the beginning to the end, in slots of inodes, and written at any time.
pub(super) struct MetadataFile<'a> {
    file: &'a File,
    /// The offset of the first byte that is not taken.
    end: u64,
    /// How many bytes may be taken.
    end_max: u64,
    /// The ends of blocks that are not taken: their offsets and lengths.
    gaps: VecDeque<(u64, u64)>,
    /// The last bytes, not yet written, from an offset on.
    collected: Vec<u8>,
    collected_start: u64,
}

impl<'a> MetadataFile<'a> {
    /// The file, whose first `start` bytes are written by others.
    pub(super) fn new(file: &'a File, start: u64, end_max: u64) -> Self {
        Self { file, end: start, end_max, gaps: VecDeque::new(), collected: Vec::new(), collected_start: start }
    }

    /// The offset of the first byte that is not taken.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The number of bytes that are free in the last block.
    pub(super) fn room(&self) -> u64 {
        self.end.next_multiple_of(BLOCK_BYTES) - self.end
    }

    /// Whether the next `len` bytes are in one block.
    pub(super) fn fits(&self, len: u64) -> bool {
        self.end % BLOCK_BYTES + len <= BLOCK_BYTES
    }

    /// Whether the next byte begins a block.
    pub(super) fn is_aligned(&self) -> bool {
        self.end.is_multiple_of(BLOCK_BYTES)
    }

    /// Continues with the next block.
    pub(super) fn align(&mut self) -> Result<(), NotKept> {
        let gap = (self.end, self.room());
        self.advance(self.end.next_multiple_of(BLOCK_BYTES))?;
        if gap.1 > 0 {
            self.gaps.push_back(gap);
        }
        if self.gaps.len() > GAPS_MAX {
            self.gaps.pop_front();
        }
        Ok(())
    }

    /// Takes `len` bytes in the smallest gap with room for them. Returns the offset of the first.
    pub(super) fn take_gap(&mut self, len: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(INODE_SLOT_SIZE)?;
        let (start, room) = self.gaps.iter_mut().filter(|(_, room)| *room >= len).min_by_key(|(_, room)| *room)?;
        *room -= len;
        *start += len;
        Some(*start - len)
    }

    /// Takes the next `len` bytes. Returns the offset of the first.
    pub(super) fn take(&mut self, len: u64) -> Result<u64, NotKept> {
        let start = self.end;
        let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(INODE_SLOT_SIZE));
        self.advance(end.ok_or(NotKept::TooLarge)?)?;
        Ok(start)
    }

    fn advance(&mut self, end: u64) -> Result<(), NotKept> {
        if end > self.end_max {
            return Err(NotKept::TooLarge);
        }
        self.end = end;
        Ok(())
    }

    /// Writes `bytes` at `position`, which was taken.
    pub(super) fn put(&mut self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(at) = position.checked_sub(self.collected_start) else {
            let (early, late) = bytes.split_at(bytes.len().min((self.collected_start - position) as usize));
            self.file.write_all_at(early, position)?;
            return if late.is_empty() { Ok(()) } else { self.put(self.collected_start, late) };
        };
        if at as usize > self.collected.len() + COLLECTED_BYTES_MAX {
            // A large gap, which is written later.
            self.flush()?;
            self.collected_start = position;
            return self.put(position, bytes);
        }
        let end = at as usize + bytes.len();
        if self.collected.len() < end {
            self.collected.resize(end, 0);
        }
        if let Some(place) = self.collected.get_mut(at as usize..end) {
            place.copy_from_slice(bytes);
        }
        if self.collected.len() >= COLLECTED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// Writes what is collected.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.collected, self.collected_start)?;
        self.collected_start += self.collected.len() as u64;
        self.collected.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_gap_with_room_is_filled() {
        let file = tempfile::tempfile().expect("a file");
        let mut metadata = MetadataFile::new(&file, 4000, 1 << 20);
        metadata.align().expect("room");
        assert_eq!(metadata.take(4064).expect("room"), 4096);
        metadata.align().expect("room");
        assert_eq!(
            (metadata.take_gap(97), metadata.take_gap(32), metadata.take_gap(32)),
            (None, Some(8160), Some(4000))
        );
        assert_eq!((metadata.take_gap(33), metadata.take_gap(33), metadata.end()), (Some(4032), None, 8192));
    }

    #[test]
    fn bytes_are_taken_in_order_and_written_in_any() {
        let file = tempfile::tempfile().expect("a file");
        let mut metadata = MetadataFile::new(&file, 4000, 1 << 20);
        assert_eq!((metadata.room(), metadata.fits(96), metadata.fits(97)), (96, true, false));
        assert_eq!(metadata.take(33).expect("room"), 4000);
        metadata.align().expect("room");
        assert!(metadata.is_aligned() && metadata.take(COLLECTED_BYTES_MAX as u64).expect("room") == 4096);
        metadata.put(4096, &[1; COLLECTED_BYTES_MAX]).expect("written");
        let (last, after) = (metadata.end(), metadata.take(64).expect("room"));
        metadata.put(after, &[2; 64]).expect("written");
        metadata.put(last - 2, &[3; 4]).expect("written");
        metadata.put(4000, &[4; 32]).expect("written");
        metadata.flush().expect("written");
        let mut bytes = vec![0; 70];
        file.read_exact_at(&mut bytes, last - 6).expect("read");
        assert_eq!(bytes, [[1; 4].as_slice(), &[3; 4], &[2; 62]].concat());
        assert!(matches!(metadata.take(1 << 20), Err(NotKept::TooLarge)));
    }
}
