//! Queries the mounts of one user.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use floe_fuse::MountTable;

use crate::{
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
/// answer is valid.
pub(super) fn ask_all(
    user_id: u32,
    table: &MountTable,
    deadline: Instant,
    tell: impl Fn((u32, u32), Option<MountMetrics>),
) {
    let is_own = rustix::process::geteuid().as_raw() == user_id;
    let (mounts_max, mut bytes_left) =
        if is_own { (usize::MAX, usize::MAX) } else { (MOUNTS_MAX, USER_SAMPLES_BYTES_MAX) };
    let endpoints = Endpoint::of_user(user_id).filter(|endpoint| may_be_of_user(endpoint, table)).take(mounts_max);
    let endpoints: Vec<_> = endpoints.collect();
    for endpoints in endpoints.chunks(MOUNTS_AT_ONCE) {
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = endpoints.iter().map(|endpoint| scope.spawn(|| ask(endpoint, deadline))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect()
        });
        for (endpoint, metrics) in endpoints.iter().zip(answers) {
            let metrics = metrics.ok().filter(|metrics| metrics.exposition.samples_bytes() <= bytes_left);
            bytes_left -= metrics.as_ref().map_or(0, |metrics| metrics.exposition.samples_bytes());
            tell(endpoint.device, metrics);
        }
    }
}

/// Whether the mount with the number of this socket belongs to the user, as far as the mount table shows: it may be in another
/// mount namespace.
fn may_be_of_user(endpoint: &Endpoint, table: &MountTable) -> bool {
    let mut entries = table.entries().iter().filter(|entry| entry.device == endpoint.device);
    entries.all(|entry| entry.is_served() && entry.user_id.unwrap_or(0) == endpoint.user_id)
}

/// Queries a mount for its metrics.
fn ask(endpoint: &Endpoint, deadline: Instant) -> io::Result<MountMetrics> {
    let time = ANSWER_TIME_MAX.min(deadline.saturating_duration_since(Instant::now()));
    if time.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
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
