//! Runs many reads in parallel.

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use floe_image::{Nid, Result};

use crate::Image;

/// One read.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The file.
    pub nid: Nid,
    /// The offset of the first byte.
    pub offset: u64,
    /// The destination; its length is the number of bytes to read.
    pub output: &'a mut [u8],
}

impl Image {
    /// Runs many reads on all CPUs. Returns a result for each, in the order of the requests, equal to the result of
    /// [`Image::read_at`].
    ///
    /// Reads of neighbouring bytes share their decoded blocks through the block cache, so sorting requests by file and
    /// offset makes them cheaper.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Vec<Result<usize>> {
        let thread_count = thread::available_parallelism().map_or(1, NonZero::get).min(requests.len());
        if thread_count < 2 {
            return requests.iter_mut().map(|request| self.perform(request)).collect();
        }
        let slots: Vec<_> = requests.iter_mut().map(|request| Mutex::new((request, Ok(0)))).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(slot) = slots.get(next.fetch_add(1, Relaxed)) {
                // Each slot is locked only once. The lock exists for the borrow checker.
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                let (request, result) = &mut *slot;
                *result = self.perform(request);
            }
        };
        thread::scope(|scope| {
            for _ in 1..thread_count {
                // If no thread can be started, this thread does all the work.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1).collect()
    }

    fn perform(&self, request: &mut ReadRequest<'_>) -> Result<usize> {
        self.read_at(request.nid, request.offset, request.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileType, OpenOptions};

    #[test]
    fn many_reads_give_what_single_reads_give() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
        let image = Image::open(demo, &OpenOptions::default()).expect("the demo image");
        let mut wanted = Vec::new();
        for entry in image.walk() {
            let entry = entry.expect("an entry");
            let is_file = entry.attr.file_type == FileType::Regular;
            wanted.extend((0..entry.attr.size + 5000).step_by(3000).filter(|_| is_file).map(|at| (entry.attr.nid, at)));
        }
        assert!(wanted.len() > 100);
        // A directory has no data: its read fails, and the others succeed.
        wanted.insert(50, (image.root(), 0));
        let mut buffers = vec![[0; 4096]; wanted.len()];
        let mut requests: Vec<ReadRequest<'_>> = buffers
            .iter_mut()
            .zip(&wanted)
            .map(|(output, &(nid, offset))| ReadRequest { nid, offset, output })
            .collect();
        let results = image.read_many(&mut requests);
        assert_eq!(results.len(), wanted.len());
        for (index, (&(nid, offset), result)) in wanted.iter().zip(results).enumerate() {
            let mut expected = [0; 4096];
            match (image.read_at(nid, offset, &mut expected), result) {
                (Ok(expected_len), Ok(len)) => {
                    assert_eq!(len, expected_len, "{nid} at {offset}");
                    assert_eq!(buffers[index][..len], expected[..len], "{nid} at {offset}");
                }
                (Err(_), Err(_)) => assert_eq!(index, 50),
                (expected, result) => panic!("{nid} at {offset}: {result:?}, not {expected:?}"),
            }
        }
    }
}
