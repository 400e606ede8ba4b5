//! Queries the mounts of one user.

use std::{
    io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use floe_keeper::MountTable;

use floe_mount::{
    control::{Answer, AnswerLimits, Endpoint, Question},
    status::{Exposition, SCHEMA, add_report},
};

/// How long a mount may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// The maximum length of an answer. On a machine with two CPUs, it has 17 KB; each CPU adds 200 bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// The maximum length of the samples of a mount. Each sample repeats the labels, so a long mountpoint counts many
/// times.
const MOUNT_SAMPLES_BYTES_MAX: usize = 1 << 20;

/// The maximum length of the samples of a user other than the exporter's.
const USER_SAMPLES_BYTES_MAX: usize = 16 << 20;

/// The maximum number of queried mounts of a user other than the exporter's.
const MOUNTS_MAX: usize = 256;

/// The number of mounts of a user that are queried at the same time.
const MOUNTS_AT_ONCE: usize = 8;

/// The maximum length of a mountpoint: that of a path.
const MOUNTPOINT_BYTES_MAX: usize = 4096;

/// The metrics of a mount.
pub(super) struct MountMetrics {
    pub(super) mountpoint: String,
    pub(super) exposition: Exposition,
}

/// The labels of a mount: the user, as the kernel reports it, the device number, and the mountpoint, as the mount says.
/// Mountpoints may repeat, in different mount namespaces.
pub(super) struct Labels {
    user: String,
    device: String,
}

impl Labels {
    pub(super) fn new(user_id: u32, device: (u32, u32)) -> Self {
        Self { user: user_id.to_string(), device: format!("{}:{}", device.0, device.1) }
    }

    pub(super) fn with<'a>(&'a self, mountpoint: &'a str) -> [(&'static str, &'a str); 3] {
        [("mountpoint", mountpoint), ("device", &self.device), ("user", &self.user)]
    }
}

/// Queries the mounts of a user until the deadline. `tell` receives the device number of each, and its metrics if its
/// answer is valid. Returns whether all mounts with sockets were queried.
pub(super) fn ask_all(
    user_id: u32,
    directories: &[PathBuf],
    table: &MountTable,
    deadline: Instant,
    tell: impl Fn((u32, u32), Option<MountMetrics>),
) -> bool {
    let is_own = rustix::process::geteuid().as_raw() == user_id;
    let (mounts_max, mut bytes_left) =
        if is_own { (usize::MAX, usize::MAX) } else { (MOUNTS_MAX, USER_SAMPLES_BYTES_MAX) };
    let mut endpoints =
        Endpoint::of_user(user_id, directories).filter(|endpoint| may_be_of_user(endpoint, table)).fuse();
    let mut left = mounts_max;
    loop {
        let some: Vec<_> = endpoints.by_ref().take(left.min(MOUNTS_AT_ONCE)).collect();
        left -= some.len();
        if some.is_empty() {
            return left > 0 || endpoints.next().is_none();
        }
        for (endpoint, asked) in some.iter().zip(ask_at_once(&some, deadline)) {
            // The time was too short for an answer.
            let Some(answer) = asked else { return false };
            let metrics = answer.ok().filter(|metrics| metrics.exposition.samples_bytes() <= bytes_left);
            bytes_left -= metrics.as_ref().map_or(0, |metrics| metrics.exposition.samples_bytes());
            tell(endpoint.device, metrics);
        }
    }
}

/// Queries some mounts, each on its own thread; one after the other if no thread can be started.
fn ask_at_once(endpoints: &[Endpoint], deadline: Instant) -> Vec<Option<io::Result<MountMetrics>>> {
    thread::scope(|scope| {
        let start = |endpoint| thread::Builder::new().spawn_scoped(scope, move || ask(endpoint, deadline));
        let started: Vec<_> = endpoints.iter().map(start).collect();
        let answers = started.into_iter().zip(endpoints).map(|(started, endpoint)| match started {
            Ok(asked) => asked.join().unwrap_or_else(|_| Some(Err(io::ErrorKind::Other.into()))),
            Err(_) => ask(endpoint, deadline),
        });
        answers.collect()
    })
}

/// Whether the mount with the number of this socket belongs to the user, as far as the mount table shows: it may be in another
/// mount namespace.
fn may_be_of_user(endpoint: &Endpoint, table: &MountTable) -> bool {
    let mut entries = table.entries().iter().filter(|entry| entry.device == endpoint.device);
    entries.all(|entry| entry.is_served() && entry.user_id.unwrap_or(0) == endpoint.user_id)
}

/// Queries a mount for its metrics. Returns `None` if it did not answer, but had less time than others because the deadline came.
fn ask(endpoint: &Endpoint, deadline: Instant) -> Option<io::Result<MountMetrics>> {
    let time = ANSWER_TIME_MAX.min(deadline.saturating_duration_since(Instant::now()));
    if time.is_zero() {
        return None;
    }
    match metrics_of(endpoint, time) {
        Err(error) if is_timeout(&error) && time < ANSWER_TIME_MAX => None,
        result => Some(result),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn metrics_of(endpoint: &Endpoint, time: Duration) -> io::Result<MountMetrics> {
    let report = match endpoint.ask(&Question::Status, AnswerLimits { time, bytes: ANSWER_BYTES_MAX })? {
        Answer::Status(report) if report.schema == SCHEMA => report,
        _ => return Err(io::Error::other("another version of Floe")),
    };
    if report.mountpoint.len() > MOUNTPOINT_BYTES_MAX {
        return Err(io::Error::other("the mountpoint is not a path"));
    }
    let labels = Labels::new(endpoint.user_id, endpoint.device);
    let mut exposition = Exposition::with_limit(MOUNT_SAMPLES_BYTES_MAX);
    add_report(&mut exposition.of_mount(&labels.with(&report.mountpoint)), &report)?;
    Ok(MountMetrics { mountpoint: report.mountpoint, exposition })
}
