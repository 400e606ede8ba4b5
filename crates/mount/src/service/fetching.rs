//! The process that fetches remote images for the domains of a service. It has the network and the credentials; a domain has a
//! connection for each image, and gets bytes.
//!
//! It is one process for all images, and outlives the broker as long as one is open. The next broker does not know it, and starts its
//! own. If it dies, reads wait, and the domain asks its broker for another connection.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe::remote::{FetchingProcess, ImageOptions};
use floe_sync::Mutex;

use super::{kept_image::KeptImage, ledger::Ledger, messages::Order, record::path, settings::settings_of_request};
use crate::{
    daemon::own_program,
    remote::{self, FETCH_SEVERAL_COMMAND},
};

/// The shortest time between two connections for one mount. A domain may ask for any number of them.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);

/// The process that fetches, if remote images are mounted.
#[derive(Default)]
pub(super) struct Fetching {
    process: Mutex<Option<FetchingProcess>>,
    /// When mounts got another connection.
    renewed: Mutex<HashMap<u64, Instant>>,
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
        let started = start()?;
        let opened = started.open(location, options);
        *process = Some(started);
        opened
    }

    /// Whether a mount may get another connection now.
    fn may_renew(&self, number: u64) -> bool {
        let mut renewed = self.renewed.lock();
        let is_due = renewed.get(&number).is_none_or(|last| last.elapsed() >= RENEWAL_INTERVAL);
        if is_due {
            renewed.insert(number, Instant::now());
        }
        is_due
    }
}

impl Ledger {
    /// A connection to the image of a mount, if it is remote.
    ///
    /// # Errors
    /// The process that fetches cannot be started.
    pub(super) fn source_of(&self, kept: &KeptImage) -> io::Result<Option<OwnedFd>> {
        let location = path(&kept.request.image);
        if !remote::is_url(&location) {
            return Ok(None);
        }
        let mut settings =
            settings_of_request(&kept.request).map_err(|failure| io::Error::other(failure.to_string()))?;
        let directory = &mut settings.open.remote.cache_directory;
        *directory = directory.take().or_else(|| self.cache_directory.clone());
        self.fetching.open(&location, &settings.open.remote).map(Some)
    }

    /// Gives a domain another connection to the image of one of its mounts.
    pub(super) fn renew_source(self: &Arc<Self>, domain: u64, number: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let kept = state.mounts.get_mut(&number).filter(|kept| kept.domain == domain);
        let Some((kept, domain)) = kept.zip(state.domains.get(&domain)) else { return };
        if !self.fetching.may_renew(number) {
            return;
        }
        // Otherwise, the domain asks again.
        if let Ok(Some(source)) = self.source_of(kept)
            && domain.process.tell_at_once(&Order::Source { number }, &[source.as_fd()]).is_ok()
        {
            kept.files.image = source;
        }
    }

    /// Ends the process that fetches if no image is remote any more.
    pub(super) fn end_fetching_if_unused(&self) {
        let state = self.state.lock();
        let is_remote = |kept: &KeptImage| remote::is_url(&path(&kept.request.image));
        let mut renewed = self.fetching.renewed.lock();
        renewed.retain(|number, _| state.mounts.contains_key(number));
        let is_used = state.mounts.values().any(is_remote) || state.domains.values().any(|domain| domain.expected > 0);
        drop(renewed);
        if !is_used {
            drop(self.fetching.process.lock().take());
        }
    }
}

/// Starts the process.
fn start() -> io::Result<FetchingProcess> {
    let mut program = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`. It outlives this process, so it leaves its directory.
    program.arg0("floe").arg(FETCH_SEVERAL_COMMAND).current_dir("/");
    for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        program.env_remove(variable);
    }
    let (process, mut child) = FetchingProcess::start(program)?;
    // Without the thread, it stays in the table of processes until this one ends.
    let _ = thread::Builder::new().name("floe-reap".to_owned()).spawn(move || child.wait());
    Ok(process)
}

/// Whether an error means that the process has ended.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected)
}
