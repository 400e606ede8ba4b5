//! The process that fetches remote images for the domains of a service. It has the network and the credentials; a domain has a
//! connection for each image, and gets bytes.
//!
//! It is one process for all images, and outlives the broker as long as one is open. The next broker does not know it, and starts its
//! own. If it dies, reads wait, and the domain asks its broker for another connection.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe::remote::{FetchingProcess, ImageOptions};
use floe_sync::Mutex;
use rustix::{
    io::retry_on_intr,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::{daemon::own_program, remote::FETCH_SEVERAL_COMMAND};

/// The shortest time between two connections for one mount. A domain may ask for any number of them.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);

/// The process that fetches, if remote images are mounted.
#[derive(Default)]
pub(super) struct Fetching {
    process: Mutex<Option<FetchingProcess>>,
    /// When mounts got another connection.
    renewed: Mutex<HashMap<u64, Instant>>,
    /// All such processes that have not ended, also those for mounts of earlier times.
    children: Arc<Mutex<BTreeSet<u32>>>,
}

impl Fetching {
    /// A connection to the image at `location`, which the process opens meanwhile.
    ///
    /// # Errors
    /// The process cannot be started, or does not take the request.
    pub(super) fn open(&self, location: &Path, options: &ImageOptions) -> io::Result<OwnedFd> {
        let location = location.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let mut process = self.process.lock();
        if let Some(running) = &*process {
            match running.open(location, options) {
                Err(error) if is_end(&error) => {}
                opened => return opened,
            }
        }
        *process = None;
        let started = self.start()?;
        let opened = started.open(location, options);
        *process = Some(started);
        opened
    }

    /// Forgets when mounts got another connection, except those with these numbers.
    pub(super) fn retain(&self, is_kept: impl Fn(u64) -> bool) {
        self.renewed.lock().retain(|number, _| is_kept(*number));
    }

    /// Lets the process end as soon as no domain has a connection.
    pub(super) fn end(&self) {
        drop(self.process.lock().take());
    }

    /// Whether a mount may get another connection now.
    pub(super) fn may_renew(&self, number: u64) -> bool {
        let mut renewed = self.renewed.lock();
        let is_due = renewed.get(&number).is_none_or(|last| last.elapsed() >= RENEWAL_INTERVAL);
        if is_due {
            renewed.insert(number, Instant::now());
        }
        is_due
    }

    /// The processes that have not ended, for the next program of this process.
    pub(super) fn children(&self) -> Vec<u32> {
        self.children.lock().iter().copied().collect()
    }

    /// Takes the processes of an earlier program of this process, which end by themselves.
    pub(super) fn take_children(&self, children: Vec<u32>) {
        children.into_iter().for_each(|child| self.reap(child));
    }

    /// Starts the process.
    fn start(&self) -> io::Result<FetchingProcess> {
        let mut program = Command::new(own_program());
        // The program name selects drop-in programs, so it must be `floe`. It outlives this process, so it leaves its directory.
        program.arg0("floe").arg(FETCH_SEVERAL_COMMAND).current_dir("/");
        for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
            program.env_remove(variable);
        }
        let (process, child) = FetchingProcess::start(program)?;
        self.reap(child.id());
        Ok(process)
    }

    /// Removes a process from the table of processes once it has ended.
    fn reap(&self, child: u32) {
        let Some(pid) = Pid::from_raw(child.cast_signed()) else { return };
        self.children.lock().insert(child);
        let children = Arc::clone(&self.children);
        let work = move || {
            // An earlier program may have done it.
            let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED));
            children.lock().remove(&child);
        };
        // Without the thread, it stays in the table of processes until this one ends.
        let _ = thread::Builder::new().name("floe-reap".to_owned()).spawn(work);
    }
}

/// Whether an error means that the process has ended.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected)
}
