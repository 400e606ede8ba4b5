//! Stores the files of a recorded launch in the page cache, before its programs read them.

use std::sync::mpsc::{self, Receiver};

use floe_image::{ByteRange, Error, Nid, Result};

use crate::{
    Reader,
    memory::page_pool::Effort,
    prefetch::thresholds::{LAUNCH_FILE_BYTES_MAX, LAUNCH_STEP_BYTES},
};

impl Reader {
    /// Stores a range of a file in the page cache, up to the end of the file. The range grows to whole pages, and to the whole
    /// file if the file is small and at least half of it is in the range. The receiver gets the number of bytes that were
    /// stored. It is closed without a number if no thread can do the work.
    ///
    /// The bytes are read and stored on the thread `floe-store`, which has the priority of the decoders.
    ///
    /// # Errors
    /// The receiver gets an error if the inode has no data, the image is corrupt or cannot be read, or memory is short.
    pub fn store_for_launch(&self, nid: Nid, range: ByteRange) -> Receiver<Result<u64>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let reader = self.clone();
        self.engine().workers.store(Box::new(move || {
            // The replay of the launch may have ended meanwhile.
            let _ = sender.send(reader.store_whole_pages(nid, range));
        }));
        receiver
    }

    /// Whether other processes need the memory that a replay would use. A slow page allocation alone does not count: a virtual
    /// machine may wait for its host while memory is ample, and a launch that is not replayed is slower than one such wait.
    pub fn is_memory_scarce(&self) -> bool {
        self.engine().pool.is_memory_scarce()
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
        let is_whole = size <= LAUNCH_FILE_BYTES_MAX && range.len() >= size / 2;
        let (range, step) =
            if is_whole { (ByteRange::new(0, size), LAUNCH_FILE_BYTES_MAX) } else { (range, LAUNCH_STEP_BYTES) };
        let mut stored = 0;
        let mut offset = range.offset();
        while offset < range.end() {
            let len = (range.end() - offset).min(step) as usize;
            // The replay ends before memory is scarce.
            let mut pages = self.engine().pool.temporary(len, Effort::Demand).ok_or(Error::NoMemory)?;
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
