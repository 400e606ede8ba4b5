//! Many reads at once.

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

/// One of many reads.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The file.
    pub nid: Nid,
    /// The first byte to read.
    pub offset: u64,
    /// Where the bytes go.
    pub output: &'a mut [u8],
}

/// The number of reads that a thread takes at a time. Reads from one block are adjacent, so they rarely run on two
/// threads.
const RUN_LEN: usize = 16;

impl Image {
    /// Runs many reads on all CPUs. Returns a result for each, in the order of the requests, equal to the result of
    /// [`Image::read_at`].
    ///
    /// The reads run in the order of files and offsets, so that reads from one block decode it once, even if the block
    /// cache is small.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Vec<Result<usize>> {
        let mut results: Vec<_> = requests.iter().map(|_| Ok(0)).collect();
        let mut slots: Vec<_> = requests.iter_mut().zip(&mut results).collect();
        slots.sort_by_key(|(request, _)| (request.nid, request.offset));
        let thread_count = thread::available_parallelism().map_or(1, NonZero::get).min(slots.len());
        // Each run is locked once; the lock only satisfies the borrow checker.
        let runs: Vec<_> = slots.chunks_mut(RUN_LEN).map(Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(run) = runs.get(next.fetch_add(1, Relaxed)) {
                for (request, result) in run.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
                    **result = self.read_at(request.nid, request.offset, request.output);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..thread_count {
                // If no thread can be started, this thread does all the work.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        results
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
        // A directory has no data: its read fails, the others do not.
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
