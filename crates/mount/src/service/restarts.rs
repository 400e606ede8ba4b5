//! Domains that die: another one continues their mounts.

use std::{os::fd::OwnedFd, sync::Arc, sync::mpsc, thread, time::Duration};

use floe_image::ShownName;

use super::{
    kept_image::{Attaching, Outcome, Stage},
    ledger::{Domain, Ledger, Watched},
    users::Owner,
};
use crate::failure::Failure;

/// A domain that dies by itself within this time after its start has died early: probably because of one of its images.
const EARLY: Duration = Duration::from_secs(10);

/// After this many early deaths, the mounts of a domain are divided between two. So an image that kills its process is soon alone.
const EARLY_DEATHS_MAX: u32 = 3;

/// How long a domain may take to continue a mount.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(100);

impl Ledger {
    /// Notes that the process of a domain has ended, and starts another one for its mounts.
    pub(super) fn note_death(self: &Arc<Self>, number: u64) {
        let (domain, orphans, was_opening) = {
            let mut state = self.state.lock();
            let Some(domain) = state.domains.remove(&number) else { return };
            let (mut orphans, mut was_opening) = (Vec::new(), false);
            for (mount, kept) in &mut state.mounts {
                if kept.domain != number {
                    if kept.heir.as_ref().is_some_and(|heir| heir.domain == number) {
                        kept.tell_heir(Outcome::Failed("the new process has died".to_owned()));
                    }
                    continue;
                }
                if kept.heir.is_some() {
                    // The takeover may still succeed; otherwise its thread has the mount continued.
                    kept.tell_heir(Outcome::Died);
                    continue;
                }
                // Its client is told that the mount has failed, if it is a new one.
                match std::mem::replace(&mut kept.stage, Stage::Orphaned) {
                    Stage::Attaching(_) if kept.format.is_empty() => was_opening = true,
                    Stage::Attaching(_) | Stage::Served | Stage::Orphaned => orphans.push(*mount),
                }
                self.unwatch(kept.keeper.socket());
            }
            (domain, orphans, was_opening)
        };
        self.unwatch(domain.process.socket());
        self.unwatch(domain.process.end());
        self.remove_name(number);
        self.fronts.note_end(number);
        let (ledger, for_failure) = (Arc::clone(self), orphans.clone());
        let activity = self.upgrade.activity();
        let work = move || {
            ledger.restart(&domain, orphans, was_opening);
            drop(activity);
        };
        if let Err(error) = thread::Builder::new().name("floe-restart".to_owned()).spawn(work) {
            self.lose(&for_failure, &format!("no thread can be started: {error}"));
        }
    }

    /// Continues the mounts of a dead domain.
    fn restart(self: &Arc<Self>, dead: &Domain, orphans: Vec<u64>, was_opening: bool) {
        if orphans.is_empty() {
            dead.process.wait_for_end();
            return;
        }
        if dead.has_rings {
            dead.process.wait_for_end();
            return self.end_with(dead, &orphans);
        }
        // Readers wait for both.
        let (was_killed, next) = thread::scope(|scope| {
            let starting = scope.spawn(|| self.start_to_continue(dead.owner));
            (dead.process.wait_for_end(), starting.join())
        });
        let next = next.unwrap_or_else(|_| Err(Failure::failed("a thread panicked")));
        let early_deaths = match dead.process.started.elapsed() < EARLY {
            // If an image was being opened, it is the likely cause, and its mount has failed.
            true if was_killed || was_opening => dead.early_deaths,
            true => dead.early_deaths + 1,
            false => 0,
        };
        self.remark(format_args!(
            "the process that reads images (process {}) has died: another one continues {}",
            dead.process.id,
            if let [_] = orphans[..] { "its mount".to_owned() } else { format!("its {} mounts", orphans.len()) }
        ));
        if early_deaths < EARLY_DEATHS_MAX {
            return self.continue_in(next, &orphans, early_deaths);
        }
        if let [only] = orphans[..] {
            next.into_iter().for_each(|next| self.release(next));
            return self.lose(&[only], "the process that reads its image dies again and again");
        }
        let (first, second) = orphans.split_at(orphans.len() / 2);
        self.continue_in(next, first, early_deaths - 1);
        self.continue_in(self.start_to_continue(dead.owner), second, early_deaths - 1);
    }

    /// Starts a domain that is to continue mounts.
    ///
    /// # Errors
    /// As for [`Ledger::start_domain`].
    pub(super) fn start_to_continue(&self, owner: Owner) -> Result<u64, Failure> {
        // No new mount is to start another one meanwhile.
        let _starting = (owner == Owner::Service).then(|| self.starting.lock());
        self.start_domain(owner, false)
    }

    /// Has a domain that was just started continue mounts. Those that it cannot continue are lost.
    pub(super) fn continue_in(self: &Arc<Self>, domain: Result<u64, Failure>, numbers: &[u64], early_deaths: u32) {
        let domain = match domain {
            Ok(domain) => domain,
            Err(failure) => return self.lose(numbers, &failure.to_string()),
        };
        if let Some(domain) = self.state.lock().domains.get_mut(&domain) {
            domain.early_deaths = early_deaths;
        }
        let (mut waiters, mut earlier_sources) = (Vec::new(), Vec::new());
        for number in numbers {
            match self.continue_mount(*number, domain) {
                Ok(Some((waiter, earlier_source))) => {
                    waiters.push((*number, waiter));
                    earlier_sources.push(earlier_source);
                }
                // It has ended meanwhile.
                Ok(None) => {}
                Err(error) => self.lose(&[*number], &error.to_string()),
            }
        }
        self.wait_for_continued(waiters);
        // Until then, the process that fetches keeps remote images open, so that no server is asked again.
        drop(earlier_sources);
        self.release(domain);
    }

    /// Waits for the answers of a domain that continues mounts.
    pub(super) fn wait_for_continued(self: &Arc<Self>, waiters: Vec<(u64, Attaching)>) {
        for (number, waiter) in waiters {
            match waiter.recv_timeout(ATTACH_TIME_MAX) {
                Ok(Ok(())) => {}
                Ok(Err((_, message))) => self.lose(&[number], &message),
                Err(mpsc::RecvTimeoutError::Timeout) => self.lose(&[number], "it takes too long to open the image"),
                // The domain has died, too, and another one is started.
                Err(mpsc::RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Asks a new domain to continue a mount. Returns the receiver of its answer, and the earlier connection to a remote image;
    /// `None` if the mount has ended.
    pub(super) fn continue_mount(
        &self,
        number: u64,
        domain: u64,
    ) -> std::io::Result<Option<(Attaching, Option<OwnedFd>)>> {
        let (sender, waiter) = mpsc::channel();
        let (socket, earlier_source) = {
            let mut state = self.state.lock();
            let Some(kept) = state.mounts.get_mut(&number) else { return Ok(None) };
            let source = self.source_of(kept)?;
            let earlier_source = source.map(|source| std::mem::replace(&mut kept.files.image, source));
            (kept.domain, kept.heir) = (domain, None);
            kept.stage = Stage::Attaching(sender);
            let socket = kept.keeper.renew()?;
            self.watch(kept.keeper.socket(), Watched::Mount(number))?;
            (socket, earlier_source)
        };
        match self.attach(number, &socket) {
            // The end of the domain is an event of its own.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Some((waiter, earlier_source))),
            attached => attached.map(|()| Some((waiter, earlier_source))),
        }
    }

    /// Ends mounts over io_uring whose process has died. Their connections end with the last descriptors.
    fn end_with(self: &Arc<Self>, dead: &Domain, numbers: &[u64]) {
        for number in numbers {
            let directory = self.state.lock().mounts.get(number).map(|kept| kept.place().directory().to_owned());
            if let Some(directory) = directory {
                let (directory, process) = (directory.shown(), dead.process.id);
                self.remark(format_args!(
                    "{directory}: the mount is lost: process {process}, which served it over io_uring, has died"
                ));
                // This closes the connection before it unmounts: the end of a front waits for requests.
                self.forget(*number);
            }
        }
    }

    /// Gives mounts up.
    pub(super) fn lose(self: &Arc<Self>, numbers: &[u64], reason: &str) {
        for number in numbers {
            let directory = self.state.lock().mounts.get(number).map(|kept| kept.place().directory().to_owned());
            if let Some(directory) = directory {
                self.remark(format_args!("{}: the mount is lost: {reason}", directory.shown()));
                self.take_back(*number);
            }
        }
    }
}
