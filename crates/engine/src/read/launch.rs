//! Stores the files of a recorded launch in the page cache, before its programs read them.

use floe_image::{ByteRange, Error, Nid, Result};

use crate::{
    AdoptedThread, Reader,
    memory::page_pool::Effort,
    prefetch::thresholds::{LAUNCH_FILE_STEP_BYTES, LAUNCH_STEP_BYTES},
};

impl Reader {
    /// Stores a range of a file in the page cache, on the calling thread, which has the priority of the decoders meanwhile.
    /// The range grows to whole pages. If the cache takes no bytes of a file but reads them itself
    /// ([`Sink::reads_by_itself`](crate::Sink::reads_by_itself)), it is asked to do so. A range that cannot be read is
    /// skipped: programs that read it receive the error. Returns the number of bytes that were stored or asked for.
    pub fn store_for_launch(&self, thread: &AdoptedThread, nid: Nid, range: ByteRange) -> u64 {
        let _working = thread.work();
        self.store_whole_pages(nid, range).unwrap_or(0)
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
        if page_cache.reads_by_itself(nid) {
            page_cache.request(nid, range, self.engine().workers.cpus_are_short());
            return Ok(range.len());
        }
        let step = if range.len() == size { LAUNCH_FILE_STEP_BYTES } else { LAUNCH_STEP_BYTES };
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
