//! The measurements of one launch.

use serde::Serialize;

use super::account::{Account, StageAccount};
use crate::sched::{ThreadSchedule, ThreadTotals, WaitKind, WorkSchedule};

/// One launch, raw.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Launch {
    /// The index of the variant.
    pub variant: usize,
    /// The index of the block.
    pub block: usize,
    /// Whether it was traced; the others are controls.
    pub is_traced: bool,
    /// From before the start of the command until its exit, in nanoseconds.
    pub wall_ns: u64,
    /// The start time, in nanoseconds of the boot clock.
    pub start_ns: u64,
    /// The decompressing threads, if they could be measured.
    pub decompression: Option<Latency>,
    /// All threads of the process that reads the image, if there is one.
    pub server: Option<Latency>,
    /// The command and its descendants.
    pub reader: Latency,
    /// The command's minor page faults.
    pub minor_faults: u64,
    /// The command's major page faults.
    pub major_faults: u64,
    /// The CPU time of the command, in nanoseconds.
    pub cpu_ns: u64,
    /// Floe's statistics, if Floe read the image and was mounted for this launch only.
    pub account: Option<Account>,
    /// The number of lost trace records.
    pub lost_records: u64,
    /// The number of switches missing from the trace.
    pub unexplained_switches: u64,
    /// The number of switches missing from tracing but present in perf events.
    pub restored_switches: u64,
    /// The reason for which the tables exclude this launch; `None` if they include it.
    pub discarded: Option<String>,
}

/// The scheduling latency of some threads in a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The total wait for a CPU after wakeups, in nanoseconds; for work items, from queued to started.
    pub wake_ns: u64,
    /// The total wait for a CPU after preemption, in nanoseconds.
    pub preempt_ns: u64,
    /// The sum of both, also if the method cannot separate them.
    pub total_ns: u64,
    /// Single waits in nanoseconds; empty if the method does not show them.
    pub waits_ns: Vec<u64>,
    /// How often the threads slept.
    pub sleep_count: u64,
    /// The total sleep time in nanoseconds; zero if the method does not show it.
    pub sleep_ns: u64,
    /// The total running time in nanoseconds.
    pub running_ns: u64,
    /// Waits of unknown length because events were missing.
    pub invalid_count: u64,
}

impl Latency {
    /// The longest wait in nanoseconds; `None` if single waits are unknown.
    fn longest_ns(&self) -> Option<u64> {
        self.waits_ns.iter().copied().max()
    }

    /// Adds a traced thread.
    pub(crate) fn add_thread(&mut self, thread: &ThreadSchedule) {
        self.wake_ns += thread.latency_ns(Some(WaitKind::Wake));
        self.preempt_ns += thread.latency_ns(Some(WaitKind::Preempt));
        self.total_ns = self.wake_ns + self.preempt_ns;
        self.waits_ns.extend(thread.waits.iter().map(crate::sched::Wait::duration_ns));
        self.sleep_count += thread.sleep_count;
        self.sleep_ns += thread.sleep_ns;
        self.running_ns += thread.running_ns;
        self.invalid_count += thread.invalid_count;
    }

    /// Adds the kernel's totals of a thread.
    pub(crate) fn add_totals(&mut self, totals: &ThreadTotals) {
        self.total_ns += totals.waiting_ns;
        self.sleep_count += totals.sleep_count;
        self.running_ns += totals.running_ns;
    }

    /// The waits of kernel work items for a worker.
    pub(crate) fn of_work(work: &WorkSchedule) -> Self {
        let waits_ns: Vec<u64> = work.items.iter().map(crate::sched::WorkItem::latency_ns).collect();
        let total_ns = waits_ns.iter().sum();
        let run = work.items.iter().filter_map(|item| Some(item.end_ns?.saturating_sub(item.start_ns)));
        Self {
            wake_ns: total_ns,
            total_ns,
            waits_ns,
            running_ns: run.sum(),
            invalid_count: work.invalid_count,
            ..Self::default()
        }
    }
}

/// A number of a launch that tables show.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its title.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Extracts it from a launch; `None` if the launch does not show it.
    pub value: fn(&Launch) -> Option<f64>,
}

/// The metrics of launches; those of published results come first.
pub const METRICS: [Metric; 24] = [
    Metric {
        title: "total scheduling latency of the decompressing threads",
        unit: "µs",
        value: |launch| launch.decompression.as_ref().map(|latency| microseconds(latency.total_ns)),
    },
    Metric { title: "time of the launch", unit: "ms", value: |launch| Some(milliseconds(launch.wall_ns)) },
    Metric {
        title: "page allocation time for decompression",
        unit: "ms",
        value: |launch| stage(launch, "pages").map(|stage| milliseconds(stage.total_ns)),
    },
    Metric {
        title: "read latency, 99th percentile",
        unit: "µs",
        value: |launch| stage(launch, "read").map(|stage| microseconds(stage.p99_ns)),
    },
    Metric {
        title: "read latency, maximum",
        unit: "µs",
        value: |launch| stage(launch, "read").map(|stage| microseconds(stage.max_ns)),
    },
    Metric {
        title: "read latency, median",
        unit: "µs",
        value: |launch| stage(launch, "read").map(|stage| microseconds(stage.p50_ns)),
    },
    Metric { title: "reads", unit: "times", value: |launch| stage(launch, "read").map(|stage| stage.count as f64) },
    Metric {
        title: "wakeup latency of the decompressing threads",
        unit: "µs",
        value: |launch| shown(launch.decompression.as_ref()).map(|latency| microseconds(latency.wake_ns)),
    },
    Metric {
        title: "preemption latency of the decompressing threads",
        unit: "µs",
        value: |launch| shown(launch.decompression.as_ref()).map(|latency| microseconds(latency.preempt_ns)),
    },
    Metric {
        title: "longest single wait of the decompressing threads",
        unit: "µs",
        value: |launch| launch.decompression.as_ref()?.longest_ns().map(microseconds),
    },
    Metric {
        title: "scheduling latency of all threads of the reading process",
        unit: "µs",
        value: |launch| launch.server.as_ref().map(|latency| microseconds(latency.total_ns)),
    },
    Metric {
        title: "the command waited for a CPU",
        unit: "ms",
        value: |launch| Some(milliseconds(launch.reader.total_ns)),
    },
    Metric {
        title: "the command slept for",
        unit: "ms",
        value: |launch| shown(Some(&launch.reader)).map(|latency| milliseconds(latency.sleep_ns)),
    },
    Metric { title: "the command slept", unit: "times", value: |launch| Some(launch.reader.sleep_count as f64) },
    Metric { title: "the command ran for", unit: "ms", value: |launch| Some(milliseconds(launch.cpu_ns)) },
    Metric {
        title: "major page faults of the command",
        unit: "times",
        value: |launch| Some(launch.major_faults as f64),
    },
    Metric {
        title: "blocks decompressed",
        unit: "times",
        value: |launch| launch.account.as_ref().map(|account| account.work.decodes as f64),
    },
    Metric {
        title: "decompressed",
        unit: "KiB",
        value: |launch| launch.account.as_ref().map(|account| account.work.decoded_bytes as f64 / 1024.0),
    },
    Metric {
        title: "page requests to the system",
        unit: "times",
        value: |launch| stage(launch, "pages").map(|stage| stage.count as f64),
    },
    Metric {
        title: "page allocation time ahead of reads",
        unit: "ms",
        value: |launch| launch.account.as_ref().map(|account| milliseconds(account.page_pool.ahead_ns)),
    },
    Metric {
        title: "scratch pages of LZ4 blocks",
        unit: "pages",
        value: |launch| launch.account.as_ref().map(|account| account.lz4.temporary_pages as f64),
    },
    Metric {
        title: "blocks read ahead",
        unit: "times",
        value: |launch| launch.account.as_ref().map(|account| account.read_around.ahead_blocks as f64),
    },
    Metric {
        title: "blocks given up by read-around",
        unit: "times",
        value: |launch| launch.account.as_ref().map(|account| account.read_around.given_up_blocks as f64),
    },
    Metric {
        title: "page requests given up by read-around",
        unit: "times",
        value: |launch| launch.account.as_ref().map(|account| account.page_pool.given_up as f64),
    },
];

impl Metric {
    /// The scheduling latency of the decompressing threads. The published result about workers measures it.
    pub(crate) const LATENCY: &'static Self = &METRICS[0];
    /// The launch time, which users notice.
    pub(crate) const WALL: &'static Self = &METRICS[1];
    /// The time to allocate pages. The published results about pages measure it.
    pub(crate) const PAGES: &'static Self = &METRICS[2];
    /// The 99th percentile of read latency, which prefetch must not increase.
    pub(crate) const READS: &'static Self = &METRICS[3];
}

/// A stage of Floe's reads.
fn stage<'launch>(launch: &'launch Launch, name: &str) -> Option<&'launch StageAccount> {
    launch.account.as_ref()?.stage(name)
}

/// A latency with known single waits, so that its kinds can be separated.
fn shown(latency: Option<&Latency>) -> Option<&Latency> {
    latency.filter(|latency| latency.total_ns == latency.wake_ns + latency.preempt_ns)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::{Wait, WorkItem};

    #[test]
    fn threads_are_added_up_with_waits_apart() {
        let waits = vec![
            Wait { kind: WaitKind::Wake, start_ns: 0, end_ns: 7 },
            Wait { kind: WaitKind::Preempt, start_ns: 10, end_ns: 13 },
        ];
        let thread =
            ThreadSchedule { waits, running_ns: 5, sleep_count: 2, invalid_count: 1, ..ThreadSchedule::default() };
        let mut latency = Latency::default();
        latency.add_thread(&thread);
        latency.add_thread(&thread);
        assert_eq!((latency.wake_ns, latency.preempt_ns, latency.total_ns), (14, 6, 20));
        assert_eq!((latency.longest_ns(), latency.sleep_count, latency.invalid_count), (Some(7), 4, 2));
    }

    #[test]
    fn work_items_count_from_queued_to_begun() {
        let item = |queued_ns, start_ns, end_ns| WorkItem { tid: 1, queued_ns, start_ns, end_ns };
        let work = WorkSchedule { items: vec![item(1, 4, Some(9)), item(2, 12, None)], invalid_count: 3 };
        let latency = Latency::of_work(&work);
        assert_eq!((latency.total_ns, latency.running_ns, latency.invalid_count), (13, 5, 3));
    }

    #[test]
    fn metrics_that_a_tier_lacks_have_no_value() {
        let mut counted = Latency::default();
        counted.add_totals(&ThreadTotals { waiting_ns: 50, sleep_count: 3, ..ThreadTotals::default() });
        let launch = Launch { decompression: Some(counted.clone()), reader: counted, ..Launch::default() };
        let value = |title: &str| {
            let metric = METRICS.iter().find(|metric| metric.title == title).unwrap();
            (metric.value)(&launch)
        };
        assert_eq!((Metric::LATENCY.value)(&launch), Some(0.05));
        assert_eq!(value("longest single wait of the decompressing threads"), None);
        assert_eq!(value("wakeup latency of the decompressing threads"), None);
        assert_eq!((value("the command slept"), value("the command slept for")), (Some(3.0), None));
        assert_eq!((Metric::PAGES.value)(&launch), None);
    }
}
