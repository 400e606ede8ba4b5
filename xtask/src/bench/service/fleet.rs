//! Many idle mounts of one contender.

use std::{
    fs,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use super::{
    census::{Census, WakeUps},
    front::Front,
    image_set::ImageSet,
    stand::Stand,
    tree_digest::TreeDigest,
};
use crate::{
    bench::{contender::Contender, session::Session, workload::Measurement},
    task_error::{During, Outcome, TaskError},
};

/// How often the time of `floe status` is measured.
const STATUS_RUNS: usize = 9;

const MIB: f64 = 1_048_576.0;

/// How a contender mounts images of both formats.
pub(super) struct Makers {
    /// For EROFS, and for SquashFS.
    pub(super) erofs: Contender,
    pub(super) squashfs: Contender,
    /// The front that Floe is asked for.
    pub(super) front: Option<Front>,
    /// Whether the kernel alone serves the mounts.
    pub(super) is_kernel: bool,
}

/// The mounts of a contender so far.
pub(super) struct Fleet<'run> {
    stand: &'run Stand,
    images: &'run ImageSet,
    makers: &'run Makers,
    sessions: Vec<Session>,
    /// The number of mounts at the first measurement, and their memory.
    first: Option<(usize, u64)>,
    kernel_bytes_before: u64,
}

/// How long mounts rest before they are measured, and how long wake-ups are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) before: Duration,
    pub(super) idle: Duration,
}

impl<'run> Fleet<'run> {
    /// No mounts yet.
    pub(super) fn new(stand: &'run Stand, images: &'run ImageSet, makers: &'run Makers) -> Outcome<Self> {
        Ok(Self { stand, images, makers, sessions: Vec::new(), first: None, kernel_bytes_before: kernel_bytes()? })
    }

    /// How much memory all processes would have with `count` mounts, if it grew as it has so far.
    pub(super) fn expected_bytes(&self, count: usize) -> Outcome<u64> {
        let bytes = Census::take(self.stand)?.pss_bytes;
        Ok(bytes / self.sessions.len().max(1) as u64 * count as u64)
    }

    /// Mounts until there are `count` mounts, and measures them while they are idle.
    pub(super) fn grow(&mut self, count: usize, rest: Rest) -> Outcome<Vec<Measurement>> {
        let mut times_ms = Vec::new();
        while self.sessions.len() < count {
            self.stand.check()?;
            let image = self.images.of_mount(self.sessions.len());
            let started = Instant::now();
            let maker = self.makers.of(image.format);
            self.sessions.push(Session::new_in(self.stand.folder(), maker, &image.path, image.format)?);
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
        }
        self.stand.rest(rest.before)?;
        let mut measurements = Vec::new();
        if !self.makers.is_kernel {
            let wake_ups = WakeUps::begin(self.stand)?;
            self.stand.rest(rest.idle)?;
            let per_minute = wake_ups.per_minute(self.stand)?;
            let census = Census::take(self.stand)?;
            measurements.push(Measurement::less("PSS, MiB", census.pss_bytes as f64 / MIB));
            match self.first {
                None => self.first = Some((count, census.pss_bytes)),
                Some((first, bytes)) if count > first => {
                    let more = (census.pss_bytes as f64 - bytes as f64) / 1024.0 / (count - first) as f64;
                    measurements.push(Measurement::less("PSS of a further mount, KiB", more));
                }
                Some(_) => {}
            }
            measurements.extend([
                Measurement::less("threads", census.threads as f64),
                Measurement::less("processes", census.processes as f64),
                Measurement::less("descriptors", census.descriptors as f64),
                Measurement::less("wake-ups in a minute", per_minute),
            ]);
        }
        let kernel = kernel_bytes()? as f64 - self.kernel_bytes_before as f64;
        measurements.push(Measurement::less("kernel memory, MiB", kernel / MIB));
        times_ms.sort_by(f64::total_cmp);
        if let Some(last) = times_ms.len().checked_sub(1) {
            measurements.push(Measurement::less("mount p50, ms", times_ms[last / 2]));
            measurements.push(Measurement::less("mount p99, ms", times_ms[last * 99 / 100]));
        }
        if self.makers.front.is_some() {
            measurements.push(Measurement::less("floe status, ms", self.status_ms()?));
        }
        Ok(measurements)
    }

    /// Checks the front of one mount of each image, and all its bytes.
    pub(super) fn check(&self) -> Outcome {
        for (number, session) in self.sessions.iter().take(self.images.len()).enumerate() {
            self.stand.check()?;
            let image = self.images.of_mount(number);
            let maker = self.makers.of(image.format);
            if let Some(front) = self.makers.front {
                let _ = front.check(maker, &session.path())?;
            }
            if TreeDigest::of(&session.path(), &image.files).during(&maker.name)? != image.digest {
                return Err(TaskError::new(format!("{}: {} has wrong bytes", maker.name, image.path.display())));
            }
        }
        self.check_file_systems()
    }

    /// Checks in the mount table that all mounts are there, with the right file systems.
    fn check_file_systems(&self) -> Outcome {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        for (number, session) in self.sessions.iter().enumerate() {
            let path = session.path();
            let line = table.lines().find(|line| line.split(' ').nth(4).map(PathBuf::from).as_ref() == Some(&path));
            let file_system = line.and_then(|line| line.split_once(" - ")?.1.split(' ').next());
            let is_right = match (self.makers.is_kernel, self.makers.front) {
                (true, _) => file_system == Some(self.images.of_mount(number).format.name()),
                (false, Some(Front::Kernel)) => file_system == Some("erofs"),
                (false, _) => file_system.is_some_and(|name| name.starts_with("fuse")),
            };
            if !is_right {
                let found = file_system.unwrap_or("nothing");
                return Err(TaskError::new(format!("{} is mounted on {}", found, path.display())));
            }
        }
        Ok(())
    }

    /// The median time of `floe status`, which lists all mounts.
    fn status_ms(&self) -> Outcome<f64> {
        let mut times_ms = Vec::new();
        for _ in 0..STATUS_RUNS {
            let Some(mut query) = self.makers.erofs.query() else { break };
            let started = Instant::now();
            let output = query.arg("status").stdin(Stdio::null()).output().during("floe status")?;
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            let listed = String::from_utf8_lossy(&output.stdout);
            let folder = self.stand.folder().display().to_string();
            let count = listed.lines().filter(|line| line.starts_with(&folder)).count();
            if !output.status.success() || count != self.sessions.len() {
                return Err(TaskError::new(format!("floe status lists {count} of {} mounts", self.sessions.len())));
            }
        }
        times_ms.sort_by(f64::total_cmp);
        Ok(times_ms.get(STATUS_RUNS / 2).copied().unwrap_or_default())
    }
}

impl Makers {
    fn of(&self, format: floe_testkit::corpus::Format) -> &Contender {
        match format {
            floe_testkit::corpus::Format::Erofs => &self.erofs,
            floe_testkit::corpus::Format::Squashfs => &self.squashfs,
        }
    }
}

/// The kernel's memory for itself, on the whole machine, without caches that it can reclaim.
fn kernel_bytes() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(["SUnreclaim", "KernelStack", "PageTables", "Percpu"].into_iter().map(kib).sum::<u64>() << 10)
}
