//! Stores the files of a recorded launch in the page cache, before its programs read them.

use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{self, Receiver},
};

use floe_image::{ByteRange, Error, Nid, Result};

use crate::{
    Reader,
    memory::page_pool::Effort,
    prefetch::thresholds::{LAUNCH_FILE_STEP_BYTES, LAUNCH_STEP_BYTES},
};

impl Reader {
    /// Stores ranges of files in the page cache, in their order. The ranges grow to whole pages. If the cache takes no bytes of
    /// a file but reads them itself ([`Sink::reads_by_itself`](crate::Sink::reads_by_itself)), it is asked to do so. Ranges
    /// that cannot be read are skipped: programs that read them receive the error. The receiver gets the number of bytes that
    /// were stored or asked for. It is closed without a number if no thread can do the work.
    ///
    /// The bytes are read and stored by the thread `floe-store` and the calling thread, both at the priority of the decoders.
    /// Where no thread has a higher priority, two of them get twice the time of one.
    pub fn store_for_launch(&self, ranges: Vec<(Nid, ByteRange)>) -> Receiver<u64> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let ranges = Arc::new(Mutex::new(ranges.into_iter()));
        let (reader, shared) = (self.clone(), Arc::clone(&ranges));
        let (own_sender, own_bytes) = mpsc::sync_channel(1);
        self.engine().workers.store(Box::new(move || {
            let bytes = reader.store_next(&shared);
            // The replay of the launch may have ended meanwhile.
            let _ = sender.send(bytes + own_bytes.recv().unwrap_or(0));
        }));
        let working = self.engine().adopt_this_thread();
        let _ = own_sender.send(self.store_next(&ranges));
        drop(working);
        receiver
    }

    /// Stores ranges that other threads have not taken yet until none is left, and returns the number of stored bytes.
    fn store_next(&self, ranges: &Mutex<impl Iterator<Item = (Nid, ByteRange)>>) -> u64 {
        let next = || ranges.lock().unwrap_or_else(PoisonError::into_inner).next();
        let mut bytes = 0;
        while let Some((nid, range)) = next() {
            bytes += self.store_whole_pages(nid, range).unwrap_or(0);
        }
        bytes
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
