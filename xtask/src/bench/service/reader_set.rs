//! Readers of many mounts at a time, and how long threads wait for a CPU.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use floe_lab::sched::{NamePattern, ThreadTotals, process_totals, totals_between};
use floe_testkit::Random;

use super::{image_set::ImageSet, stand::Stand};
use crate::{
    bench::{listing, workload::Measurement},
    task_error::{During, Outcome, TaskError},
};

/// Readers, one for each mount, each of which reads parts of files at random places, none twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderSet {
    /// The reads of each.
    pub(super) reads: usize,
    /// The size and alignment of a read.
    pub(super) read_bytes: u64,
    /// The seed of the places.
    pub(super) round: u64,
}

/// What one reader has seen.
struct Reading {
    latencies_us: Vec<f64>,
    /// How long it waited for a CPU.
    waited_ns: u64,
}

/// A part of a file.
struct Target {
    path: PathBuf,
    offset: u64,
    len: usize,
}

impl ReaderSet {
    /// Reads from all mounts at a time. The processes of the stand apart from `others` are those of the contender.
    pub(super) fn run(
        self,
        stand: &Stand,
        images: &ImageSet,
        mounts: &[PathBuf],
        others: &[u32],
    ) -> Outcome<Vec<Measurement>> {
        let targets: Vec<Vec<Target>> =
            mounts.iter().enumerate().map(|(number, mount)| self.targets(images, number, mount)).collect();
        let before = totals(stand, others)?;
        let started = Instant::now();
        let readings: Vec<Outcome<Reading>> = thread::scope(|scope| {
            let readers: Vec<_> = targets.iter().map(|targets| scope.spawn(move || read(targets))).collect();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or(Err(TaskError::new("a reader panicked"))))
                .collect()
        });
        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
        let after = totals(stand, others)?;
        let (mut latencies_us, mut readers_ns) = (Vec::new(), 0);
        for reading in readings {
            let reading = reading?;
            latencies_us.extend(reading.latencies_us);
            readers_ns += reading.waited_ns;
        }
        latencies_us.sort_by(f64::total_cmp);
        let quantile = |share: usize| latencies_us[(latencies_us.len() - 1) * share / 1000];
        let decoders = NamePattern::new("floe-dec/*");
        let (mut decoders_ns, mut threads_ns) = (0, 0);
        for (pid, after) in &after {
            let nothing = BTreeMap::new();
            for thread in totals_between(before.get(pid).unwrap_or(&nothing), after).into_values() {
                let sum = if decoders.matches(&thread.name) { &mut decoders_ns } else { &mut threads_ns };
                *sum += thread.waiting_ns;
            }
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(vec![
            Measurement::less("all reads, ms", elapsed_ms),
            Measurement::less("read p50, µs", quantile(500)),
            Measurement::less("read p99, µs", quantile(990)),
            Measurement::less("longest read, µs", quantile(1000)),
            Measurement::less("decoders waited, ms", ms(decoders_ns)),
            Measurement::less("other threads waited, ms", ms(threads_ns)),
            Measurement::less("readers waited, ms", ms(readers_ns)),
        ])
    }

    fn targets(self, images: &ImageSet, number: usize, mount: &Path) -> Vec<Target> {
        let mut targets = Vec::new();
        for file in &images.of_mount(number).files {
            let mut offset = 0;
            while offset < file.size {
                let len = self.read_bytes.min(file.size - offset);
                targets.push(Target { path: mount.join(&file.path), offset, len: len as usize });
                offset += len;
            }
        }
        listing::shuffle(&mut targets, &mut Random::new(self.round << 16 | number as u64));
        targets.truncate(self.reads);
        targets
    }
}

fn read(targets: &[Target]) -> Outcome<Reading> {
    let begun_ns = own_wait_ns()?;
    let mut latencies_us = Vec::new();
    for target in targets {
        let asked = Instant::now();
        target.read().during(target.path.display())?;
        latencies_us.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    if latencies_us.is_empty() {
        return Err(TaskError::new("an image has no files"));
    }
    Ok(Reading { latencies_us, waited_ns: own_wait_ns()?.saturating_sub(begun_ns) })
}

impl Target {
    fn read(&self) -> io::Result<()> {
        let mut bytes = vec![0; self.len];
        File::open(&self.path)?.read_exact_at(&mut bytes, self.offset)
    }
}

/// How long this thread has been runnable without running.
fn own_wait_ns() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").during("schedstat")?;
    let waited = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    waited.ok_or(TaskError::new("schedstat has no waiting time"))
}

/// The totals of the threads of each process.
fn totals(stand: &Stand, others: &[u32]) -> Outcome<BTreeMap<u32, BTreeMap<i32, ThreadTotals>>> {
    let processes = stand.processes()?;
    let measured = processes.iter().map(|process| process.pid).filter(|pid| !others.contains(pid));
    // A process may end in between.
    Ok(measured.filter_map(|pid| Some((pid, process_totals(pid).ok()?))).collect())
}
