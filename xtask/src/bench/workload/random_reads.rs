//! Small reads at random offsets.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use floe_testkit::Random;

use super::{Measurement, Scene, Workload};
use crate::{
    bench::listing,
    task_error::{During, Outcome, TaskError},
};

/// The size and alignment of reads.
const READ_BYTES: u64 = 4_096;

/// The maximum number of open files; the usual limit of descriptors is 1,024.
const FILES_MAX: usize = 800;

/// Threads that read 4 KiB at random offsets of open files for a while, no offset twice: repeated reads would be served
/// by the kernel's page cache and tell nothing about the contender.
pub(super) struct RandomReads {
    /// The number of threads.
    pub(super) threads: u64,
}

impl Workload for RandomReads {
    fn name(&self) -> String {
        format!("random-{}", self.threads)
    }

    fn title(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("random 4 KiB, {} thread{plural}", self.threads)
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let chosen = listing::sample(scene.files, FILES_MAX, READ_BYTES, &mut Random::new(scene.round));
        if chosen.is_empty() {
            return Err(TaskError::new("the tree has no file of at least 4 KiB"));
        }
        let mut targets = Vec::new();
        let mut block_count = 0;
        for file in &chosen {
            let opened = File::open(scene.mount.join(&file.path)).during(file.path.display())?;
            block_count += file.size / READ_BYTES;
            targets.push(Target { file: opened, end_block: block_count, block_count: file.size / READ_BYTES });
        }
        let mut blocks: Vec<u64> = (0..block_count).collect();
        listing::shuffle(&mut blocks, &mut Random::new(!scene.round));
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        let outcomes: Vec<io::Result<Vec<u64>>> = thread::scope(|scope| {
            let work = || {
                let mut latencies_ns = Vec::new();
                let mut buffer = [0; READ_BYTES as usize];
                while started.elapsed() < scene.duration
                    && let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let target = &targets[targets.partition_point(|target| target.end_block <= *block)];
                    let block_of_file = block + target.block_count - target.end_block;
                    let asked = Instant::now();
                    target.file.read_exact_at(&mut buffer, block_of_file * READ_BYTES)?;
                    latencies_ns.push(asked.elapsed().as_nanos() as u64);
                }
                Ok(latencies_ns)
            };
            let readers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        let mut latencies_ns = outcomes.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
        latencies_ns.sort_unstable();
        let quantile_us = |share: f64| {
            let index = (latencies_ns.len() as f64 * share) as usize;
            latencies_ns[index.min(latencies_ns.len() - 1)] as f64 / 1e3
        };
        Ok(vec![
            Measurement::more("reads/s", latencies_ns.len() as f64 / seconds),
            Measurement::less("p50 µs", quantile_us(0.5)),
            Measurement::less("p99 µs", quantile_us(0.99)),
        ])
    }
}

struct Target {
    file: File,
    /// The number of blocks in the files up to and including this one.
    end_block: u64,
    block_count: u64,
}
