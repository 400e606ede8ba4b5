//! The machine at the time of a measurement: its noise floor, and the kernel settings that a run changes and restores.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::thread::CpuSet;
use serde::Serialize;

use super::undo::{Change, PendingChange, Undo};
use crate::{Result, error::ErrorContext};

/// The machine and its settings, for judging the numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's build, which names its preemption models.
    pub kernel_build: String,
    /// The preemption model in force, if the kernel reports it.
    pub preemption: Option<String>,
    /// The architecture.
    pub architecture: String,
    /// The processor's name.
    pub processor: String,
    /// Whether this is a virtual machine.
    pub is_virtual: bool,
    /// CPUs that this process may use.
    pub cpu_count: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Swap in bytes.
    pub swap_bytes: u64,
    /// The autogroup setting before the run; `None` if the kernel has none.
    pub autogroup_before: Option<String>,
    /// The autogroup setting during the run.
    pub autogroup: Option<String>,
    /// How many microseconds of each period real-time threads may use.
    pub real_time_runtime_us: Option<String>,
    /// The length of that period in microseconds.
    pub real_time_period_us: Option<String>,
    /// The frequency governor of the first CPU, if any.
    pub frequency_governor: Option<String>,
    /// The load average of the last minute before the run.
    pub load_average: f64,
    /// The start of the run, in seconds since 1970.
    pub unix_time: u64,
    /// Changes during the run.
    pub during: During,
}

/// The machine's own counters over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct During {
    /// Time stolen by the hypervisor, in milliseconds over all CPUs.
    pub steal_ms: u64,
    /// Pressure stall time for `cpu`, `io` and `memory`, in milliseconds.
    pub pressure_ms: BTreeMap<String, u64>,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    steal_ticks: u64,
    pressure_us: BTreeMap<String, u64>,
}

impl Environment {
    /// Reads the state of the machine.
    pub fn read() -> Self {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let value = |key: &str| {
            let line = processors.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kilobytes = |key: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let autogroup = read_setting(AUTOGROUP);
        Self {
            kernel: text(system.release()),
            kernel_build: text(system.version()),
            preemption: read_setting("/sys/kernel/debug/sched/preempt"),
            architecture: text(system.machine()),
            processor: value("model name").or_else(|| value("Processor")).unwrap_or_else(|| "unknown".to_owned()),
            is_virtual: value("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes("MemTotal:") << 10,
            swap_bytes: kilobytes("SwapTotal:") << 10,
            autogroup_before: autogroup.clone(),
            autogroup,
            real_time_runtime_us: read_setting("/proc/sys/kernel/sched_rt_runtime_us"),
            real_time_period_us: read_setting("/proc/sys/kernel/sched_rt_period_us"),
            frequency_governor: read_setting("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load_average: read_setting("/proc/loadavg")
                .and_then(|text| text.split(' ').next()?.parse().ok())
                .unwrap_or(0.0),
            unix_time: since_1970.as_secs(),
            during: During::default(),
        }
    }

    /// The lines of a report about the machine.
    pub fn lines(&self) -> Vec<String> {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let kind = if self.is_virtual { " (virtual machine)" } else { "" };
        let mut lines = vec![
            format!("Linux {} {}, {}", self.kernel, self.architecture, self.kernel_build),
            format!(
                "{} × {}{kind}, {} MiB memory, {} MiB swap",
                self.cpu_count,
                self.processor,
                self.memory_bytes >> 20,
                self.swap_bytes >> 20,
            ),
            format!(
                "autogroup {} (before the run: {}), real-time {} of {} µs, preemption {}",
                known(&self.autogroup),
                known(&self.autogroup_before),
                known(&self.real_time_runtime_us),
                known(&self.real_time_period_us),
                known(&self.preemption),
            ),
        ];
        let pressure: Vec<_> = self.during.pressure_ms.iter().map(|(what, ms)| format!("{what} {ms} ms")).collect();
        let pressure = if pressure.is_empty() { "unknown".to_owned() } else { pressure.join(", ") };
        lines.push(format!(
            "during the run: stolen by the hypervisor {} ms, pressure {pressure}; load average before {:.2}",
            self.during.steal_ms, self.load_average,
        ));
        lines
    }
}

impl Counts {
    /// Reads the current counters.
    pub fn read() -> Self {
        let statistics = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpu = statistics.lines().next().unwrap_or_default();
        let steal_ticks = cpu.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0);
        let mut pressure_us = BTreeMap::new();
        for what in ["cpu", "io", "memory"] {
            let Some(text) = read_setting(format!("/proc/pressure/{what}")) else { continue };
            let total = text.lines().next().and_then(|line| line.split("total=").nth(1)?.parse().ok());
            pressure_us.extend(total.map(|total| (what.to_owned(), total)));
        }
        Self { steal_ticks, pressure_us }
    }

    /// The changes since then.
    pub(crate) fn until_now(&self) -> During {
        let now = Self::read();
        let milliseconds_per_tick = 1000 / rustix::param::clock_ticks_per_second().max(1);
        During {
            steal_ms: now.steal_ticks.saturating_sub(self.steal_ticks) * milliseconds_per_tick,
            pressure_ms: now
                .pressure_us
                .iter()
                .map(|(what, us)| {
                    (what.clone(), us.saturating_sub(self.pressure_us.get(what).copied().unwrap_or(0)) / 1000)
                })
                .collect(),
        }
    }
}

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
pub(crate) fn noise_floor(duration: Duration) -> Vec<CpuNoise> {
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

/// Whether the scheduler groups processes by session; dominates latency under load.
pub const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// A changed setting; restored when dropped.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
    change: Option<PendingChange>,
}

impl Setting {
    /// Writes `value` to the setting's file; `None` if this kernel does not have it.
    pub fn set(undo: &Undo, path: impl AsRef<Path>, value: &str) -> Result<Option<Self>> {
        let path = path.as_ref().to_owned();
        let Some(before) = read_setting(&path) else { return Ok(None) };
        if before == value {
            return Ok(Some(Self { path, before, change: None }));
        }
        let change = undo.record(Change::Setting { path: path.clone(), value: before.clone() })?;
        fs::write(&path, value).context(|| format!("cannot set {} to {value}", path.shown()))?;
        Ok(Some(Self { path, before, change: Some(change) }))
    }

    /// The previous value.
    pub fn before(&self) -> &str {
        &self.before
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if self.change.is_some() {
            let _ = fs::write(&self.path, &self.before);
        }
    }
}

/// The current value of a setting; `None` if this kernel does not have it.
pub(crate) fn read_setting(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let environment = Environment::read();
        assert!(environment.cpu_count > 0 && environment.memory_bytes > 1 << 20 && !environment.kernel.is_empty());
        assert_eq!(environment.lines().len(), 4);
        let counts = Counts::read();
        assert!(counts.until_now().steal_ms < 60_000);
    }

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

    #[test]
    fn a_setting_is_restored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "1\n").unwrap();
        let undo = Undo::new().unwrap();
        let setting = Setting::set(&undo, file.path(), "0").unwrap().unwrap();
        assert_eq!((setting.before(), read_setting(file.path()).as_deref()), ("1", Some("0")));
        drop(setting);
        assert_eq!(read_setting(file.path()).as_deref(), Some("1"));
        assert!(Setting::set(&undo, "/proc/sys/kernel/no_such_setting", "0").unwrap().is_none());
    }
}
