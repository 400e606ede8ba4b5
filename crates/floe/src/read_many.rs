//! Many reads at once.

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use floe_image::{Nid, Result};
use floe_sync::Mutex;

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

/// The minimum number of reads that a thread takes at a time, and the number of such runs for each thread. Neighbouring runs
/// may have a block in common, for which one thread then waits. The last runs leave threads without work.
const RUN_LEN_MIN: usize = 16;
const RUNS_PER_THREAD: usize = 16;
/// A run ends once its reads have this many bytes: the reads of large ranges are work for several threads.
const RUN_BYTES: usize = 1 << 20;

impl Image {
    /// Runs many reads on all CPUs. Returns a result for each, in the order of the requests, equal to the result of
    /// [`Image::read_at`].
    ///
    /// The reads run in the order of files and offsets, so that reads from one block decode it once, even if the block
    /// cache is small.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Vec<Result<usize>> {
        self.read_many_on(thread::available_parallelism().map_or(1, NonZero::get), requests)
    }

    /// As [`Image::read_many`], on at most `jobs` threads.
    pub(crate) fn read_many_on(&self, jobs: usize, requests: &mut [ReadRequest<'_>]) -> Vec<Result<usize>> {
        let mut results: Vec<_> = requests.iter().map(|_| Ok(0)).collect();
        let mut slots: Vec<_> = requests.iter_mut().zip(&mut results).collect();
        slots.sort_by_key(|(request, _)| (request.nid, request.offset));
        let thread_count = jobs.min(slots.len());
        let run_len = (slots.len() / (thread_count * RUNS_PER_THREAD).max(1)).max(RUN_LEN_MIN);
        // Each run is locked only once. The lock exists for the borrow checker.
        let (mut runs, mut rest) = (Vec::new(), slots.as_mut_slice());
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_in_run = |(request, _): &&(&mut ReadRequest<'_>, _)| {
                let has_room = bytes < RUN_BYTES;
                bytes += request.output.len();
                has_room
            };
            let count = rest.iter().take(run_len).take_while(is_in_run).count();
            let (run, after) = rest.split_at_mut(count);
            runs.push(Mutex::new(run));
            rest = after;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(run) = runs.get(next.fetch_add(1, Relaxed)) {
                for (request, result) in run.lock().iter_mut() {
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
    fn cached_reads_give_what_reads_give() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
        let image = Image::open(demo, &OpenOptions::default()).expect("the demo image");
        let mut cached_count = 0;
        for entry in image.walk() {
            let entry = entry.expect("an entry");
            for offset in (0..entry.attr.size + 5000).step_by(3000) {
                let (mut expected, mut found) = ([0; 9000], [0; 9000]);
                let result = image.read_at(entry.attr.nid, offset, &mut expected);
                if let Some(found_len) = image.read_cached(entry.attr.nid, offset, &mut found) {
                    let len = result.unwrap_or_else(|error| panic!("{} at {offset}: {error}", entry.attr.nid));
                    assert_eq!((found_len, &found[..len]), (len, &expected[..len]), "{} at {offset}", entry.attr.nid);
                    cached_count += usize::from(len > 0);
                }
            }
        }
        assert!(cached_count > 10, "{cached_count}");
        let cold = Image::open(demo, &OpenOptions::default()).expect("the demo image");
        let readme = cold.resolve("/README.txt").expect("the demo has it");
        assert!(cold.read_cached(readme, 0, &mut [0; 100]).is_none());
    }

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
