//! Measures how long the machine interrupts a spinning thread: the noise floor of all measurements.

use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use serde::Serialize;

/// Shorter gaps come from the loop itself.
const GAP_MIN: Duration = Duration::from_micros(2);

/// The interruptions of a thread that spins on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuNoise {
    /// The CPU.
    pub cpu: usize,
    /// Gaps of at least 2 µs between two clock readings.
    pub gap_count: u64,
    /// The longest gap in nanoseconds.
    pub gap_ns_max: u64,
    /// The sum of all gaps in nanoseconds.
    pub gap_ns_total: u64,
    /// How long the thread spun, in nanoseconds.
    pub duration_ns: u64,
}

impl CpuNoise {
    /// The percentage of time lost.
    pub fn percent(&self) -> f64 {
        self.gap_ns_total as f64 * 100.0 / (self.duration_ns.max(1)) as f64
    }
}

/// Spins on each CPU in turn for `duration` and records gaps between clock readings.
pub fn noise_floor(duration: Duration) -> Vec<CpuNoise> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    cpus.into_iter()
        .filter_map(|cpu| std::thread::scope(|scope| scope.spawn(|| spin(cpu, duration)).join().ok().flatten()))
        .collect()
}

fn spin(cpu: usize, duration: Duration) -> Option<CpuNoise> {
    let mut only = CpuSet::new();
    only.set(cpu);
    rustix::thread::sched_setaffinity(None, &only).ok()?;
    let mut noise = CpuNoise { cpu, ..CpuNoise::default() };
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let begin = Instant::now();
    let mut before = begin;
    loop {
        let now = Instant::now();
        let gap = now - before;
        if gap >= GAP_MIN {
            noise.gap_count += 1;
            noise.gap_ns_max = noise.gap_ns_max.max(nanoseconds(gap));
            noise.gap_ns_total += nanoseconds(gap);
        }
        before = now;
        if now - begin >= duration {
            noise.duration_ns = nanoseconds(now - begin);
            return Some(noise);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_each_cpu_is_measured() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let noise = noise_floor(Duration::from_millis(20));
        assert_eq!(noise.len(), before.count() as usize);
        for cpu in &noise {
            assert!(cpu.duration_ns >= 20_000_000 && cpu.gap_ns_max <= cpu.gap_ns_total, "{cpu:?}");
            assert!((0.0..=100.0).contains(&cpu.percent()));
        }
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before, "the caller is pinned now");
    }
}
