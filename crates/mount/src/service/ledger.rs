//! The record of a broker, which its threads share: mounts and domains, and what it watches.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use floe_engine::Priority;
use floe_image::ShownName;
use floe_keeper::{Detach, KeptAnswer, Place, RingOrder, UnmountError, UnmountReason};
use floe_sync::Mutex;
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    io::retry_on_intr,
};

use super::{
    domain_directory::DomainDirectory,
    domain_process::DomainProcess,
    fetching::Fetching,
    fronts::Fronts,
    kept_image::{KeptFiles, KeptImage, Outcome, Stage},
    messages::{Order, Report},
    pending_upgrade::Upgrade,
    record_key::RecordKey,
    users::{Owner, UserLimits},
};
use crate::{MountUsers, Remarks};

/// The maximum number of events that are taken from the kernel at once.
const EVENTS_MAX: usize = 64;

/// The record of a broker, which its threads share.
pub(super) struct Ledger {
    /// The options of the service, in the notation of `-o`.
    pub(super) options: String,
    /// How the threads that look up the names of launches are scheduled.
    pub(super) priority: Priority,
    pub(super) remarks: Remarks,
    pub(super) state: Mutex<State>,
    /// Locked while a domain for new mounts is started.
    pub(super) starting: Mutex<()>,
    pub(super) is_stopping: AtomicBool,
    /// The limits of other users; `None` if the service serves none.
    pub(super) users: Option<UserLimits>,
    /// Where the next broker finds the domains; `None` if it cannot.
    pub(super) directory: Option<DomainDirectory>,
    /// The key of the records for the next broker.
    pub(super) key: RecordKey,
    pub(super) fronts: Arc<Fronts>,
    /// The cache directory of mounts that name none.
    pub(super) cache_directory: Option<PathBuf>,
    pub(super) fetching: Fetching,
    pub(super) upgrade: Upgrade,
    epoll: OwnedFd,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) mounts: BTreeMap<u64, KeptImage>,
    pub(super) domains: HashMap<u64, Domain>,
    /// The number of unmounted mounts of other users whose files are not closed yet, by their accounts.
    closing: HashMap<u32, usize>,
    last_number: u64,
}

/// A domain with its process.
#[derive(Clone)]
pub(super) struct Domain {
    pub(super) process: Arc<DomainProcess>,
    pub(super) owner: Owner,
    /// How often its predecessors have died soon after their start.
    pub(super) early_deaths: u32,
    /// The number of mounts that are being made for it. It does not end before they are.
    pub(super) expected: u32,
    /// Whether it has mounts that this broker could not adopt.
    pub(super) has_unmanaged: bool,
    /// Whether another one takes its place: it gets no new mounts.
    pub(super) is_retiring: bool,
    /// Whether it serves one mount, over io_uring: no other one can continue that.
    pub(super) has_rings: bool,
    /// The number of its remarks that were printed.
    remarks: Arc<AtomicU32>,
}

/// What a descriptor of the broker belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watched {
    Listener,
    UsersListener,
    Stop,
    /// The program may be replaced now.
    Upgrade,
    Client(u64),
    Domain(u64),
    DomainEnd(u64),
    Mount(u64),
    /// The mount table.
    Table,
}

impl Domain {
    pub(super) fn new(process: Arc<DomainProcess>, owner: Owner, expected: u32) -> Self {
        Self {
            process,
            owner,
            early_deaths: 0,
            expected,
            has_unmanaged: false,
            is_retiring: false,
            has_rings: false,
            remarks: Arc::default(),
        }
    }
}

impl State {
    /// The number of mounts of another user.
    pub(super) fn mounts_of(&self, account: u32) -> usize {
        let mounts = self.mounts.values().filter(|kept| kept.owner.account() == Some(account)).count();
        mounts + self.closing.get(&account).copied().unwrap_or(0)
    }

    /// The last number that was given.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }
}

impl Ledger {
    /// Without mounts, and with nothing to be watched.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn new(
        options: String,
        priority: Priority,
        directory: Option<DomainDirectory>,
        users: Option<UserLimits>,
        cache_directory: Option<PathBuf>,
        remarks: Remarks,
    ) -> io::Result<Self> {
        let key = match &directory {
            Some(directory) => directory.key().clone(),
            None => RecordKey::random()?,
        };
        Ok(Self {
            key,
            options,
            priority,
            remarks,
            state: Mutex::default(),
            starting: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            users,
            directory,
            fronts: Arc::default(),
            cache_directory,
            fetching: Fetching::default(),
            upgrade: Upgrade::new()?,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    /// Waits for events, and returns what they belong to. Meanwhile, ends fronts that were unmounted.
    ///
    /// # Errors
    /// The kernel reports none.
    pub(super) fn wait(&self) -> rustix::io::Result<Vec<Watched>> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let pause = self.fronts.look().and_then(|pause| Timespec::try_from(pause).ok());
        retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), pause.as_ref()))?;
        Ok(events.iter().map(|event| Watched::of(event.data)).collect())
    }

    /// Reports events of a descriptor from now on.
    pub(super) fn watch(&self, descriptor: impl AsFd, watched: Watched) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, descriptor, watched.data(), EventFlags::IN)
    }

    /// Reports changes of the mount table from now on. `table` is an open file of it.
    pub(super) fn watch_changes(&self, table: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, table, Watched::Table.data(), EventFlags::PRI)
    }

    /// Reports the next event of a descriptor, and then no more until [`Ledger::watch_again`].
    pub(super) fn watch_once(&self, descriptor: impl AsFd, watched: Watched) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, descriptor, watched.data(), EventFlags::IN | EventFlags::ONESHOT)
    }

    /// Reports the next event of a descriptor.
    pub(super) fn watch_again(&self, descriptor: impl AsFd, watched: Watched) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, descriptor, watched.data(), EventFlags::IN | EventFlags::ONESHOT)
    }

    /// Reports no more events of a descriptor.
    pub(super) fn unwatch(&self, descriptor: impl AsFd) {
        // It may not be watched any more.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    pub(super) fn remark(&self, message: fmt::Arguments<'_>) {
        (self.remarks)(&message.to_string());
    }

    /// A number that was not given before.
    pub(super) fn next_number(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_number += 1;
        state.last_number
    }

    /// Gives no number up to this one.
    pub(super) fn reserve_numbers(&self, up_to: u64) {
        let mut state = self.state.lock();
        state.last_number = state.last_number.max(up_to);
    }

    /// Takes the messages of a domain.
    pub(super) fn take_reports(self: &Arc<Self>, number: u64) {
        let Some(domain) = self.state.lock().domains.get(&number).cloned() else { return };
        loop {
            match domain.process.report() {
                Ok(Some(report)) => self.take_report(number, report),
                Ok(None) => return,
                Err(_) => {
                    // Its end is an event of its own.
                    self.unwatch(domain.process.socket());
                    return domain.process.kill();
                }
            }
        }
    }

    /// Takes a message of a domain, which an attacker may control: it concerns mounts of this domain only.
    fn take_report(self: &Arc<Self>, domain: u64, report: Report) {
        let mut state = self.state.lock();
        let number = match &report {
            Report::Ready | Report::Adopting { .. } | Report::Kept { .. } => return,
            Report::Rendered { number, is_done } => {
                drop(state);
                return self.fronts.note_rendered(domain, *number, *is_done);
            }
            Report::SourceLost { number } => {
                drop(state);
                return self.renew_source(domain, *number);
            }
            Report::Attached { number, .. }
            | Report::Failed { number, .. }
            | Report::Remark { number, .. }
            | Report::HandedOver { number, .. }
            | Report::Ended { number, .. } => *number,
        };
        let Some(kept) = state.mounts.get_mut(&number) else { return };
        if kept.domain != domain {
            return kept.note_heir(domain, &report);
        }
        let kept_owner = kept.owner;
        match report {
            Report::Ready
            | Report::Adopting { .. }
            | Report::Kept { .. }
            | Report::Rendered { .. }
            | Report::SourceLost { .. } => {}
            Report::HandedOver { is_given, .. } => kept.tell_heir(Outcome::HandedOver { is_given }),
            Report::Attached { format, .. } => {
                if let Stage::Attaching(waiter) = std::mem::replace(&mut kept.stage, Stage::Served) {
                    kept.format = format;
                    // The waiter may have given up.
                    let _ = waiter.send(Ok(()));
                }
            }
            Report::Failed { kind, message, .. } => {
                if let Stage::Attaching(waiter) = std::mem::replace(&mut kept.stage, Stage::Orphaned) {
                    let _ = waiter.send(Err((kind, message)));
                }
            }
            Report::Remark { text, .. } => match &kept.stage {
                Stage::Attaching(_) => {
                    if kept.remarks.len() < REMARKS_MAX {
                        kept.remarks.push(text);
                    }
                }
                Stage::Served | Stage::Orphaned => {
                    let directory = kept.place().directory().shown().to_string();
                    let printed = state.domains.get(&domain).map_or(0, |domain| domain.remarks.fetch_add(1, Relaxed));
                    let printed_max = if kept_owner == Owner::Service { PRINTED_MAX } else { OF_USER_PRINTED_MAX };
                    drop(state);
                    if printed < printed_max {
                        self.remark(format_args!("{directory}: {text}"));
                    }
                }
            },
            Report::Ended { is_released, .. } => {
                let ended = state.mounts.remove(&number);
                drop(state);
                self.close(ended, is_released);
            }
        }
    }

    /// Closes a mount that has ended, and its domain if that has no other.
    fn close(self: &Arc<Self>, ended: Option<KeptImage>, is_released: bool) {
        let Some(KeptImage { domain, owner, keeper, files, control_name, end_waiters, .. }) = ended else { return };
        self.unwatch(keeper.socket());
        let place = keeper.place().clone();
        drop((keeper, control_name));
        match owner.account() {
            Some(account) => self.close_of_user(account, files, place),
            None => {
                drop(files);
                if place.is_mounted() {
                    // Nobody serves it any more.
                    let work = move || drop(place.unmount(Detach::Lazily));
                    let _ = thread::Builder::new().name("floe-unmount".to_owned()).spawn(work);
                }
            }
        }
        for waiter in end_waiters {
            let _ = waiter.send(is_released);
        }
        self.end_fetching_if_unused();
        self.end_if_unused(domain);
    }

    /// Closes the files of another user's mount, and unmounts it, on a thread of its own: file systems of that user may take as long as
    /// they like. Until then, the mount counts.
    fn close_of_user(self: &Arc<Self>, account: u32, files: KeptFiles, place: Place) {
        *self.state.lock().closing.entry(account).or_default() += 1;
        let ledger = Arc::clone(self);
        let work = move || {
            drop(files);
            let _ = place.unmount(Detach::Lazily);
            let mut state = ledger.state.lock();
            if let Some(count) = state.closing.get_mut(&account) {
                *count -= 1;
                if *count == 0 {
                    state.closing.remove(&account);
                }
            }
        };
        // Without a thread, the files are closed here, and the mount counts until the service ends.
        let _ = thread::Builder::new().name("floe-close".to_owned()).spawn(work);
    }

    /// Removes a mount that no domain serves.
    pub(super) fn forget(self: &Arc<Self>, number: u64) {
        let forgotten = self.state.lock().mounts.remove(&number);
        self.close(forgotten, true);
    }

    /// Ends a domain without mounts.
    pub(super) fn end_if_unused(&self, number: u64) {
        let mut state = self.state.lock();
        let is_expected = state.domains.get(&number).is_some_and(|domain| domain.expected > 0);
        if is_expected || state.mounts.values().any(|kept| kept.domain == number) {
            return;
        }
        let Some(domain) = state.domains.remove(&number) else { return };
        drop(state);
        self.unwatch(domain.process.socket());
        self.unwatch(domain.process.end());
        self.fronts.note_end(number);
        if domain.has_unmanaged {
            // It waits for the next broker, at its socket.
            return;
        }
        if domain.process.tell_at_once(&Order::End, &[]).is_err() {
            domain.process.kill();
        }
        self.remove_name(number);
        // Its threads may wait for a source.
        let work = move || {
            domain.process.wait_for_end();
            if domain.is_retiring {
                // Its threads may still wait for a source, and another process answers their requests.
                domain.process.kill();
            }
        };
        let _ = thread::Builder::new().name("floe-reap".to_owned()).spawn(work);
    }

    /// Removes the socket at which the next broker would find a domain.
    pub(super) fn remove_name(&self, domain: u64) {
        if let Some(directory) = &self.directory {
            directory.remove(domain);
        }
    }

    /// Answers a request of the process that serves a mount.
    pub(super) fn answer_keeper(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        let Some(kept) = state.mounts.get_mut(&number) else { return };
        match kept.keeper.answer() {
            KeptAnswer::Answered => {}
            KeptAnswer::Front(order) => {
                drop(state);
                self.put_front(number, order);
            }
            KeptAnswer::Rings(order) => {
                drop(state);
                self.permit_rings(order);
            }
            KeptAnswer::Ended => self.unwatch(kept.keeper.socket()),
        }
    }

    /// Permits rings to the process that serves a mount, on a thread of its own: this waits for other mounts, and for that process.
    fn permit_rings(&self, order: RingOrder) {
        // The permission ends before this program does.
        let activity = self.upgrade.activity();
        let work = move || {
            order.carry_out();
            drop(activity);
        };
        // Without a thread, the process waits until its client gives up.
        let _ = thread::Builder::new().name("floe-rings".to_owned()).spawn(work);
    }

    /// Leaves the mounts as they are, with their names and their control sockets, because this process ends.
    pub(super) fn leave_mounts(&self) {
        std::mem::forget(std::mem::take(&mut self.state.lock().mounts));
        self.directory.iter().for_each(DomainDirectory::remove_itself);
    }

    /// Unmounts all that is not in use. Returns a message for each mount that stays.
    pub(super) fn unmount_all(&self) -> Vec<String> {
        let numbers: Vec<u64> = self.state.lock().mounts.keys().copied().collect();
        let mut left = Vec::new();
        for number in numbers {
            match self.unmount(number, Detach::Never) {
                Ok(_) | Err(UnmountError { reason: UnmountReason::NotMounted, .. }) => {}
                Err(UnmountError { path, reason: UnmountReason::Busy }) => left.push(format!(
                    "{} is in use {}: it stays, and is served until it is unmounted",
                    path.shown(),
                    MountUsers::of(&path)
                )),
                Err(error) => left.push(format!("{error}: it stays, and is served until it is unmounted")),
            }
        }
        left
    }
}

/// The number of remarks about a mount that its client gets.
const REMARKS_MAX: usize = 16;

/// The number of remarks of one process that are printed. An image that took over the process could make any number of them.
const PRINTED_MAX: u32 = 10_000;

/// The same for the process of another user.
const OF_USER_PRINTED_MAX: u32 = 100;

impl Watched {
    /// The kinds, by their numbers.
    const KINDS: [fn(u64) -> Self; 9] = [
        |_| Self::Listener,
        |_| Self::Stop,
        Self::Client,
        Self::Domain,
        Self::DomainEnd,
        Self::Mount,
        |_| Self::UsersListener,
        |_| Self::Table,
        |_| Self::Upgrade,
    ];

    fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Stop => (1, 0),
            Self::Client(number) => (2, number),
            Self::Domain(number) => (3, number),
            Self::DomainEnd(number) => (4, number),
            Self::Mount(number) => (5, number),
            Self::UsersListener => (6, 0),
            Self::Table => (7, 0),
            Self::Upgrade => (8, 0),
        };
        EventData::new_u64(number * Self::KINDS.len() as u64 + kind)
    }

    fn of(data: EventData) -> Self {
        let kinds = Self::KINDS.len() as u64;
        let kind = Self::KINDS.get((data.u64() % kinds) as usize).copied().unwrap_or(|_| Self::Stop);
        kind(data.u64() / kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_belong_to_what_was_watched() {
        for watched in [
            Watched::Listener,
            Watched::UsersListener,
            Watched::Stop,
            Watched::Upgrade,
            Watched::Client(1),
            Watched::Domain(7),
            Watched::DomainEnd(u64::MAX >> 4),
            Watched::Mount(0),
            Watched::Table,
        ] {
            assert_eq!(Watched::of(watched.data()), watched);
        }
    }
}
