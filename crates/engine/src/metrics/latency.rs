//! Latency histograms of the stages of a read.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use floe_sync::Mutex;
use hdrhistogram::Histogram;

/// Significant decimal digits of recorded latencies; two mean a precision of one percent.
const SIGNIFICANT_DIGITS: u8 = 2;

/// The longest latency that is recorded exactly, in nanoseconds; longer ones count as this.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// The number of copies of each histogram. Threads are spread over them, so that they rarely contend for a lock.
const SHARD_COUNT: usize = 4;

/// A stage of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// From entering a queue to leaving it.
    QueueWait,
    /// Getting pages from the operating system.
    Pages,
    /// Reading stored bytes from a source.
    Fetch,
    /// Decoding one block.
    Decode,
    /// Delivering the bytes to the caller.
    Reply,
    /// The whole read, from the request to its reply.
    Read,
}

impl Stage {
    /// All stages in the order of a read, the total last.
    pub const ALL: [Self; 6] = [Self::QueueWait, Self::Pages, Self::Fetch, Self::Decode, Self::Reply, Self::Read];

    /// The stage's name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueWait => "queue wait",
            Self::Pages => "pages",
            Self::Fetch => "fetch",
            Self::Decode => "decode",
            Self::Reply => "reply",
            Self::Read => "read",
        }
    }
}

/// The latency of one stage so far, in nanoseconds, with a precision of one percent.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LatencySummary {
    /// How many times the stage ran.
    pub count: u64,
    /// The exact sum of all latencies.
    pub total_ns: u64,
    /// The average.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Histograms of all stages.
pub(crate) struct Latencies {
    shards: Vec<Mutex<Shard>>,
}

struct Shard {
    stages: [Histogram<u64>; Stage::ALL.len()],
    totals_ns: [u64; Stage::ALL.len()],
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARD_COUNT).map(|_| Mutex::new(Shard::new())).collect() }
    }

    /// Records how long a stage took.
    pub(crate) fn record(&self, stage: Stage, latency: Duration) {
        let latency_ns = latency.as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64;
        let mut shard = self.shards[this_thread_number() % SHARD_COUNT].lock();
        shard.stages[stage as usize].saturating_record(latency_ns);
        shard.totals_ns[stage as usize] += latency_ns;
    }

    /// Runs `work` and records how long it took.
    pub(crate) fn time<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = work();
        self.record(stage, started.elapsed());
        result
    }

    /// Runs `work`, which replies to a read that was requested at `asked`, and records the latencies of the reply and
    /// of the whole read.
    pub(crate) fn reply(&self, asked: Instant, work: impl FnOnce()) {
        let started = Instant::now();
        work();
        let answered = Instant::now();
        self.record(Stage::Reply, answered - started);
        self.record(Stage::Read, answered - asked);
    }

    pub(crate) fn summary(&self, stage: Stage) -> LatencySummary {
        let mut all = new_histogram();
        let mut total_ns = 0;
        for shard in &self.shards {
            let shard = shard.lock();
            all += &shard.stages[stage as usize];
            total_ns += shard.totals_ns[stage as usize];
        }
        LatencySummary {
            count: all.len(),
            total_ns,
            mean_ns: if all.is_empty() { 0.0 } else { total_ns as f64 / all.len() as f64 },
            p50_ns: all.value_at_quantile(0.5),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            max_ns: all.max(),
        }
    }

    /// For each bound in `bounds_ns` (ascending, in nanoseconds), returns how often the stage took no longer.
    pub(crate) fn counts_up_to(&self, stage: Stage, bounds_ns: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds_ns.len()];
        for shard in &self.shards {
            let shard = shard.lock();
            for step in shard.stages[stage as usize].iter_recorded() {
                let first = bounds_ns.partition_point(|bound_ns| *bound_ns < step.value_iterated_to());
                if let Some(count) = counts.get_mut(first) {
                    *count += step.count_at_value();
                }
            }
        }
        let mut sum = 0;
        for count in &mut counts {
            sum += *count;
            *count = sum;
        }
        counts
    }
}

impl Shard {
    fn new() -> Self {
        Self { stages: std::array::from_fn(|_| new_histogram()), totals_ns: [0; Stage::ALL.len()] }
    }
}

fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants that the histogram takes"),
    }
}

fn this_thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed));
    }
    NUMBER.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_exact_to_one_part_in_a_hundred() {
        let latencies = Latencies::new();
        for value in 1..=10_000u64 {
            latencies.record(Stage::Decode, Duration::from_nanos(value * 1000));
        }
        let summary = latencies.summary(Stage::Decode);
        assert_eq!((summary.count, summary.total_ns), (10_000, 50_005_000_000));
        for (found, exact) in
            [(summary.p50_ns, 5e6), (summary.p99_ns, 9.9e6), (summary.p999_ns, 9.99e6), (summary.max_ns, 1e7)]
        {
            assert!((found as f64 / exact - 1.0).abs() < 0.01, "{found} for {exact}");
        }
        assert_eq!(latencies.summary(Stage::Fetch).count, 0);
        let counts = latencies.counts_up_to(Stage::Decode, &[1_000_000, 5_000_000, 20_000_000]);
        for (count, exact) in counts.iter().zip([1_000.0, 5_000.0, 10_000.0]) {
            assert!((*count as f64 / exact - 1.0).abs() < 0.01, "{counts:?}");
        }
    }
}
