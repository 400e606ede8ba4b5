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
use floe_sync::Mutex;
use rustix::process::geteuid;

use super::of_user::{MountMetrics, ask_all};
use floe_mount::{
    control::Endpoint,
    status::{Exposition, Kind},
};

/// How long a collection may take. Prometheus gives up after 10 seconds.
const COLLECTION_TIME_MAX: Duration = Duration::from_secs(8);

/// The number of users whose mounts are queried at the same time.
const USERS_AT_ONCE: usize = 32;

/// The maximum length of all samples, in bytes.
const SAMPLES_BYTES_MAX: usize = 64 << 20;

/// Collects the metrics of this user's mounts, or of the mounts of all users.
#[derive(Debug)]
pub(crate) struct Collector {
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
    pub(crate) fn new(of_every_user: bool) -> Self {
        Self { of_every_user, busy: Arc::default() }
    }

    /// The metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub(crate) fn collect(&self) -> io::Result<Vec<u8>> {
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
    let labels = super::of_user::Labels::new(user_id, device);
    let help = "Whether the program that serves the mount answers.";
    let mut out = exposition.of_mount(&labels.with(mountpoint));
    out.one("floe_mount_up", Kind::Gauge, help, &[], f64::from(u8::from(is_up)))
}
