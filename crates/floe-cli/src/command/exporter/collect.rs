//! Collects the metrics of all mounts.
//!
//! Users serve their own mounts, so another user's answer may be anything: it may be late, endless, or claim to be about other
//! mounts. Each user therefore has a thread, time and memory of their own, and all samples are labelled with the user that the
//! kernel reports.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use floe_keeper::MountTable;
use floe_mount::{
    control::{Answer, AnswerLimits, Endpoint, Question},
    status::{Exposition, Kind, SCHEMA, add_report},
};
use floe_sync::Mutex;
use rustix::process::geteuid;

/// How long a collection may take. Prometheus gives up after 10 seconds.
const COLLECTION_TIME_MAX: Duration = Duration::from_secs(8);

/// The number of users whose mounts are queried at the same time.
const USERS_AT_ONCE: usize = 32;

/// The maximum length of all samples, in bytes.
const SAMPLES_BYTES_MAX: usize = 64 << 20;

/// Collects the metrics of this user's mounts, or of the mounts of all users.
#[derive(Debug)]
pub(super) struct Collector {
    of_every_user: bool,
    /// The users whose threads are at work. A user can make such a thread hang forever, for example with a file system
    /// mounted over the directory for sockets.
    busy: Arc<Mutex<BTreeSet<u32>>>,
}

/// A report of the thread of a user.
enum News {
    Mount {
        user_id: u32,
        device: (u32, u32),
        metrics: Option<MountMetrics>,
    },
    /// The thread has ended.
    Done {
        user_id: u32,
        /// Whether it has asked all mounts of the user that have sockets.
        is_complete: bool,
    },
}

/// Ends the work for a user.
struct Turn {
    user_id: u32,
    busy: Arc<Mutex<BTreeSet<u32>>>,
    news: mpsc::Sender<News>,
    is_complete: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.user_id);
        let _ = self.news.send(News::Done { user_id: self.user_id, is_complete: self.is_complete });
    }
}

/// The known facts about the mounts.
#[derive(Default)]
struct Answers {
    /// The queried mounts, each with its metrics if it answered.
    mounts: BTreeMap<(u32, (u32, u32)), Option<MountMetrics>>,
    /// The users of whom all mounts with sockets were queried.
    complete: BTreeSet<u32>,
}

impl Collector {
    pub(super) fn new(of_every_user: bool) -> Self {
        Self { of_every_user, busy: Arc::default() }
    }

    /// The metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub(super) fn collect(&self) -> io::Result<Vec<u8>> {
        let table = Arc::new(MountTable::read()?);
        let users = Endpoint::directories(self.of_every_user, &table);
        let Answers { mounts, complete } = self.ask(&users, &table);
        // The table is read after the answers, so that a mount that has ended meanwhile does not count as one without
        // an answer.
        let table = MountTable::read()?;
        let mut exposition = Exposition::default();
        let (mut answered, known) = (BTreeSet::new(), mounts.keys().copied().collect::<BTreeSet<_>>());
        for ((user_id, device), metrics) in mounts {
            let Some(metrics) = metrics else { continue };
            if exposition.samples_bytes() + metrics.exposition.samples_bytes() <= SAMPLES_BYTES_MAX {
                answered.insert((user_id, device));
                add_up(&mut exposition, user_id, device, &metrics.mountpoint, true)?;
                exposition.append(metrics.exposition);
            }
        }
        for entry in table.entries() {
            let user_id = entry.user_id.unwrap_or(0);
            let mount = (user_id, entry.device);
            // A mount with another subtype is recognised by its socket.
            let is_of_floe = entry.file_system == "fuse.floe" || entry.is_front() || known.contains(&mount);
            // Nothing is known about a mount that was not asked.
            let is_asked = known.contains(&mount) || complete.contains(&user_id);
            if entry.is_served() && is_of_floe && is_asked && answered.insert(mount) {
                add_up(&mut exposition, user_id, entry.device, &entry.mountpoint.to_string_lossy(), false)?;
            }
        }
        let mut text = Vec::new();
        exposition.write(&mut text)?;
        Ok(text)
    }

    /// Queries the mounts of these users. Returns the answers that arrive in time.
    fn ask(&self, users: &BTreeMap<u32, Vec<PathBuf>>, table: &Arc<MountTable>) -> Answers {
        let deadline = Instant::now() + COLLECTION_TIME_MAX;
        let (sender, news) = mpsc::channel();
        let mut waiting = in_order(users, table);
        let (mut working_count, mut answers) = (0, Answers::default());
        loop {
            while working_count < USERS_AT_ONCE
                && let Some((user_id, directories)) = waiting.pop_front()
            {
                working_count +=
                    usize::from(self.start(user_id, directories, Arc::clone(table), deadline, sender.clone()));
            }
            if working_count == 0 {
                return answers;
            }
            match news.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(News::Mount { user_id, device, metrics }) => {
                    // A mount has one socket; a second one with its number is a leftover, or belongs to another mount.
                    let known = answers.mounts.entry((user_id, device)).or_default();
                    *known = known.take().or(metrics);
                }
                Ok(News::Done { user_id, is_complete }) => {
                    working_count -= 1;
                    if is_complete {
                        answers.complete.insert(user_id);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return answers,
            }
        }
    }

    /// Starts the thread for a user, unless the one of an earlier collection is still at work. If no thread can be started, the
    /// caller's does the work for its own user, whose directories it trusts; other users are left out. Returns whether
    /// [`News::Done`] will come.
    fn start(
        &self,
        user_id: u32,
        directories: Vec<PathBuf>,
        table: Arc<MountTable>,
        deadline: Instant,
        news: mpsc::Sender<News>,
    ) -> bool {
        if !self.busy.lock().insert(user_id) {
            return false;
        }
        let (busy, is_own) = (Arc::clone(&self.busy), geteuid().as_raw() == user_id);
        let work = move |may_ask: bool| {
            let mut turn = Turn { user_id, busy, news, is_complete: false };
            turn.is_complete = may_ask
                && ask_all(user_id, &directories, &table, deadline, |device, metrics| {
                    let _ = turn.news.send(News::Mount { user_id, device, metrics });
                });
        };
        // The work is handed over once there is a thread, so that it is not lost with one that cannot start.
        let (sender, receiver) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(format!("floe-user-{user_id}"));
        let started = thread.spawn(move || receiver.recv().map(|work: Box<dyn FnOnce(bool) + Send>| work(true)));
        match started {
            Ok(_) => drop(sender.send(Box::new(work))),
            Err(_) => work(is_own),
        }
        true
    }
}

/// The users in the order in which they are asked: this one, then those with mounts in the table, then the others, system users
/// first and the user ids of containers last. A user who owns many ids thus delays nobody who has a mount.
fn in_order(users: &BTreeMap<u32, Vec<PathBuf>>, table: &MountTable) -> VecDeque<(u32, Vec<PathBuf>)> {
    let served = table.entries().iter().filter(|entry| entry.is_served());
    let mounting: BTreeSet<u32> = served.map(|entry| entry.user_id.unwrap_or(0)).collect();
    let own = geteuid().as_raw();
    let mut waiting: Vec<_> = users.iter().map(|(user_id, directories)| (*user_id, directories.clone())).collect();
    waiting.sort_by_key(|(user_id, _)| (*user_id != own, !mounting.contains(user_id), *user_id));
    waiting.into()
}

/// Adds whether a mount answers.
fn add_up(
    exposition: &mut Exposition,
    user_id: u32,
    device: (u32, u32),
    mountpoint: &str,
    is_up: bool,
) -> io::Result<()> {
    let labels = Labels::new(user_id, device);
    let help = "Whether the program that serves the mount answers.";
    let mut out = exposition.of_mount(&labels.with(mountpoint));
    out.one("floe_mount_up", Kind::Gauge, help, &[], f64::from(u8::from(is_up)))
}

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
struct MountMetrics {
    mountpoint: String,
    exposition: Exposition,
}

/// The labels of a mount: the user, as the kernel reports it, the device number, and the mountpoint, as the mount says.
/// Mountpoints may repeat, in different mount namespaces.
struct Labels {
    user: String,
    device: String,
}

impl Labels {
    fn new(user_id: u32, device: (u32, u32)) -> Self {
        Self { user: user_id.to_string(), device: format!("{}:{}", device.0, device.1) }
    }

    fn with<'a>(&'a self, mountpoint: &'a str) -> [(&'static str, &'a str); 3] {
        [("mountpoint", mountpoint), ("device", &self.device), ("user", &self.user)]
    }
}

/// Queries the mounts of a user until the deadline. `tell` receives the device number of each, and its metrics if its
/// answer is valid. Returns whether all mounts with sockets were queried.
fn ask_all(
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
