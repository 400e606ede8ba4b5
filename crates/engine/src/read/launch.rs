//! Stores what a recorded launch reads, ahead of its programs.

use std::sync::mpsc::{self, Receiver};

use floe_image::{ByteRange, Error, Nid, Result};

use crate::{Reader, memory::page_pool::Effort};

/// The number of bytes that are read and stored at a time.
const STEP_BYTES: u64 = 256 << 10;

/// The maximum size of a file that is stored as a whole: a sink may refuse the last page of a file of which it is given a
/// part.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

impl Reader {
    /// Stores a range of a file in the page cache, as far as the file reaches. The range grows to whole pages, and to the
    /// whole file if that is small and most of it is wanted. The receiver gets the number of bytes that were stored; it
    /// is closed without one where no thread can do the work.
    ///
    /// The bytes are read and stored on the thread that stores decoded bytes, which has the priority of the decoders.
    ///
    /// # Errors
    /// Those that the receiver gets: the inode has no data, the image is corrupt or cannot be read, memory is short.
    pub fn store_for_launch(&self, nid: Nid, range: ByteRange) -> Receiver<Result<u64>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let reader = self.clone();
        self.engine().workers.store(Box::new(move || {
            // The launch may have been given up meanwhile.
            let _ = sender.send(reader.store_whole_pages(nid, range));
        }));
        receiver
    }

    /// Whether prefetch must leave memory alone.
    pub fn is_memory_short(&self) -> bool {
        self.engine().pool.is_memory_short()
    }

    fn store_whole_pages(&self, nid: Nid, range: ByteRange) -> Result<u64> {
        let Some(page_cache) = self.prefetch().page_cache() else { return Ok(0) };
        let size = self.file_system().attr(nid)?.size;
        let page = page_cache.page_bytes();
        let range = ByteRange::between(
            range.offset() / page * page,
            range.end().checked_next_multiple_of(page).unwrap_or(u64::MAX),
        );
        let range = range.intersection(ByteRange::new(0, size));
        let is_whole = size <= WHOLE_BYTES_MAX && range.len() >= size / 2;
        let (range, step) = if is_whole { (ByteRange::new(0, size), WHOLE_BYTES_MAX) } else { (range, STEP_BYTES) };
        let mut stored = 0;
        let mut offset = range.offset();
        while offset < range.end() {
            let len = (range.end() - offset).min(step) as usize;
            let mut pages = self.engine().pool.temporary(len, Effort::BestEffort).ok_or(Error::NoMemory)?;
            let len = self.read(nid, offset, &mut pages[..len])?;
            if len == 0 {
                break;
            }
            stored += page_cache.store(nid, offset, &pages[..len]) as u64;
            offset += len as u64;
        }
        self.prefetch().counts.stored(stored as usize);
        Ok(stored)
    }
}
