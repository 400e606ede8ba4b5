//! The service of a keeper: it takes requests and answers them.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_ipc::send;
use rustix::{event::Timespec, io::Errno, net::SendFlags, process::Pid};

use super::{
    incoming::{Ended, Incoming},
    standby::{Inheritance, Noting},
};
use crate::{
    abort::{Abort, FuseConnections},
    caller::is_administrator,
    directory::Directory,
    failure::{MountFailure, UnmountError, UnmountReason},
    front::{FrontOptions, HiddenMount},
    front_transfer::FrontReadahead,
    fusermount::AutoUnmount,
    launch_walk::{LaunchWalker, WalkPause},
    messages::{Answer, Note, Request},
    mount::{Mounted, set_readahead},
    parent_sys::Parent,
    place::{Detach, Place},
    relay::Relay,
    ring_permission::RingPermission,
    schedule::{KeeperThread, start_thread},
    settings::KeeperSettings,
    table::MountTable,
};

/// How long fusermount3 has to unmount after the end of the process that serves the mount.
const FUSERMOUNT_TIME_MAX: Duration = Duration::from_millis(500);

/// How long a process may need to set up a connection with rings, for which the kernel's parameter is changed.
const RING_PERMISSION_TIME_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// How long a keeper tries to unmount a mount that its user does not know of.
const UNCONFIRMED_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval of these attempts while the process that served the mount has not ended.
const UNCONFIRMED_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The pause between two attempts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// The state of a keeper.
#[derive(Default)]
pub(super) struct Service {
    /// The directory to mount on. It is closed once it has a mount: its file system would be busy.
    mountpoint: Option<Directory>,
    hidden: Option<HiddenMount>,
    /// Held until the mount, or the hidden mount of a front, is served.
    ring_permission: Option<RingPermission>,
    mounted: Option<Place>,
    /// Whether the mount is a front.
    is_front: bool,
    /// Whether this process has made the mount, and its user does not know yet that it works.
    is_unconfirmed: bool,
    /// The process that this one serves.
    parent: Option<Arc<Parent>>,
    /// Whether a thread aborts the connection if that process is killed and cannot end.
    is_watched: bool,
    /// Stops the thread that looks up the names of a launch.
    walk: Option<Arc<WalkPause>>,
    /// Tells the standby what this process does; `None` if it is the standby.
    noting: Option<Noting>,
}

/// An answer, with the descriptors beside it.
type Reply = (Answer, Vec<OwnedFd>);

impl Service {
    /// There is no mount yet. `parent` is the process that this one serves.
    pub(super) fn new(mountpoint: Option<Directory>, parent: Option<Arc<Parent>>, noting: Option<Noting>) -> Self {
        Self { mountpoint, parent, noting, ..Self::default() }
    }

    /// Keeps a mount for a process that serves it and is watched by others.
    pub(super) fn of_kept(place: Place) -> Self {
        Self { mounted: Some(place), ..Self::default() }
    }

    /// Takes over from a keeper that was killed, with its mount if that still exists.
    pub(super) fn of_killed(inheritance: Inheritance, parent: Option<Arc<Parent>>) -> Self {
        let mut service = Self::new(None, parent, None);
        if let Some((place, is_front)) = inheritance.mounted.filter(|(place, _)| place.is_mounted()) {
            (service.is_front, service.is_unconfirmed) = (is_front, inheritance.is_unconfirmed);
            service.watch_mount(place);
        }
        service
    }

    /// Answers requests until it is told to end, or the other end of the socket is closed. `served` is the process there.
    pub(super) fn run(mut self, settings: KeeperSettings<'_>, socket: OwnedFd, relays: Vec<Relay>, served: Pid) {
        let mut incoming = Incoming { socket, relays, served };
        let is_told_to_end = loop {
            let time_max = self.ring_permission.as_ref().map(|_| RING_PERMISSION_TIME_MAX);
            let request = match incoming.request(time_max) {
                Ok(Some(request)) => request,
                Ok(None) => {
                    self.ring_permission = None;
                    continue;
                }
                Err(Ended) => break incoming.close(),
            };
            if request == Request::End {
                break true;
            }
            let (answer, descriptors) = self.answer(request, settings);
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            if send(&incoming.socket, &answer, &descriptors, SendFlags::empty()).is_err() {
                break incoming.close();
            }
        };
        self.end(settings, is_told_to_end);
    }

    /// Unmounts what is to be unmounted at the end of the process that is served.
    fn end(&self, settings: KeeperSettings<'_>, is_told_to_end: bool) {
        if self.is_unconfirmed
            && let Some(mounted) = &self.mounted
        {
            unmount_unconfirmed(mounted, self.parent.as_deref());
        }
        // Otherwise the process has been killed, and its threads may be stuck; or it could not be answered, and asks the
        // standby now.
        if let (false, Some(parent)) = (is_told_to_end, self.parent.as_ref().filter(|_| self.is_watched)) {
            self.note(Note::Ended);
            parent.wait_for_end();
        }
        if let (true, Some(mounted)) = (settings.options.auto_unmount, &self.mounted) {
            // fusermount3 unmounts a FUSE mount, but not if it misses the mount because the mount table changes at that moment.
            if self.is_front || !is_told_to_end && stays_dead(mounted) {
                let _ = unmount(mounted, Detach::Lazily);
            }
        }
        if let Some(directory) = settings.temporary_directory {
            let _ = fs::remove_dir(directory);
        }
        self.note(Note::Ended);
    }

    /// Answers a request. Refuses requests that a mount with these settings does not make.
    pub(super) fn answer(&mut self, request: Request, settings: KeeperSettings<'_>) -> Reply {
        if !settings.permits(request) {
            return (Answer::refused(libc::EPERM), Vec::new());
        }
        if let (Request::Unmount { .. }, Some(walk)) = (request, &self.walk) {
            walk.stop();
        }
        // The process serves the hidden mount before it sends another request, so the permission is no longer needed.
        self.ring_permission = None;
        let answer = match request {
            Request::Mount { has_rings } => return self.mount(settings, has_rings),
            Request::MountHidden { has_rings } => return self.mount_hidden(has_rings),
            Request::MountFront { options } => return self.mount_front(settings, options),
            Request::Walk => {
                let walk = self.walk(settings);
                let started = |(socket, thread)| (Answer::Walking { thread }, vec![socket]);
                return walk.map_or_else(|error| (Answer::failed(error), Vec::new()), started);
            }
            Request::Adopt => match settings.directory.zip(settings.adopted).filter(|_| self.mounted.is_none()) {
                None => Answer::refused(libc::EBUSY),
                Some((directory, device)) => self.adopt(directory, device),
            },
            Request::Unmount { is_lazy } => {
                let detach = if is_lazy { Detach::Lazily } else { Detach::Never };
                match self.mounted.as_ref().map(|mounted| unmount(mounted, detach)) {
                    None => Answer::UnmountFailed { reason: UnmountReason::NotMounted },
                    Some(Ok(())) => Answer::Done,
                    Some(Err(error)) => Answer::UnmountFailed { reason: error.reason },
                }
            }
            Request::SetReadahead => {
                let device = self.mounted.as_ref().and_then(Place::device);
                match device.zip(settings.options.readahead_bytes) {
                    None => Answer::failed(io::ErrorKind::Unsupported),
                    Some((device, bytes)) => {
                        set_readahead(device, bytes).map_or_else(Answer::failed, |()| Answer::Done)
                    }
                }
            }
            Request::FindUsers => {
                let directory = self.mounted.as_ref().map(Place::path_now);
                Answer::Users { text: directory.as_deref().map(settings.users_of).unwrap_or_default() }
            }
            Request::IsAdministrator { thread } => Answer::Administrator { is_administrator: is_administrator(thread) },
            Request::ConfirmMount => {
                self.is_unconfirmed = false;
                self.note(Note::Confirmed);
                Answer::Done
            }
            Request::End => Answer::Done,
            Request::PermitRings => Answer::refused(libc::EPERM),
        };
        (answer, Vec::new())
    }

    fn mount(&mut self, settings: KeeperSettings<'_>, has_rings: bool) -> Reply {
        let Some(mountpoint) = self.mountpoint.take().filter(|_| self.mounted.is_none()) else {
            return (Answer::refused(libc::EBUSY), Vec::new());
        };
        let permission = has_rings.then(RingPermission::give).flatten();
        match Mounted::on(&mountpoint, settings.options) {
            Ok(Mounted { device, auto_unmount, place }) => {
                let rings_are_permitted = permission.is_some();
                (self.is_unconfirmed, self.ring_permission) = (true, permission);
                let auto_unmount = auto_unmount.map(AutoUnmount::into_socket);
                let mount_id = self.watch_mount(place);
                (Answer::Mounted { mount_id, rings_are_permitted }, [device].into_iter().chain(auto_unmount).collect())
            }
            Err(failure) => (Answer::MountFailed { failure }, Vec::new()),
        }
    }

    /// Takes over the mount on a directory if it has this device number and a program serves it.
    fn adopt(&mut self, directory: &Path, device: (u32, u32)) -> Answer {
        let table = MountTable::read().unwrap_or_default();
        let entry = table.on(directory).filter(|entry| entry.is_served() && entry.device == device);
        let Some(entry) = entry else { return Answer::refused(libc::ENOTCONN) };
        self.is_front = entry.is_front();
        let mount_id = self.watch_mount(Place::of(entry));
        Answer::Mounted { mount_id, rings_are_permitted: false }
    }

    fn mount_hidden(&mut self, has_rings: bool) -> Reply {
        if self.hidden.is_some() || self.mounted.is_some() {
            return (Answer::refused(libc::EBUSY), Vec::new());
        }
        let device = match floe_fuse_wire::open() {
            Ok(device) => device,
            Err(error) => return (Answer::MountFailed { failure: MountFailure::Device { error } }, Vec::new()),
        };
        let permission = has_rings.then(RingPermission::give).flatten();
        match HiddenMount::new(device.as_fd()) {
            Ok(hidden) => {
                let rings_are_permitted = permission.is_some();
                (self.hidden, self.ring_permission) = (Some(hidden), permission);
                (Answer::Hidden { rings_are_permitted }, vec![device])
            }
            Err(error) => (Answer::MountFailed { failure: MountFailure::front(error) }, Vec::new()),
        }
    }

    fn mount_front(&mut self, settings: KeeperSettings<'_>, options: FrontOptions) -> Reply {
        let parts = self.mountpoint.as_ref().zip(self.hidden.take()).filter(|_| self.mounted.is_none());
        let Some((mountpoint, hidden)) = parts else { return (Answer::refused(libc::EBUSY), Vec::new()) };
        let kept = settings.kept_front.filter(|_| options.is_kept);
        let front = hidden.detached_front(settings.options, options, kept);
        let (place, transfer) = match front.and_then(|front| front.attach(mountpoint)) {
            Ok(attached) => attached,
            Err(error) => return (Answer::MountFailed { failure: MountFailure::front(error) }, Vec::new()),
        };
        self.mountpoint = None;
        (self.is_front, self.is_unconfirmed) = (true, true);
        let numbers = place.to_numbers();
        self.note_mount(place.clone());
        // Without it, a store to the hidden file could keep a killed process from ending.
        let transfer = transfer.filter(|(_, readahead)| self.abort_when_stuck(readahead.hidden_device()));
        let started = transfer.and_then(|(transfer, readahead)| {
            let is_urgent = options.cpus_are_short;
            let (kind, schedule) = (KeeperThread::Readahead { is_urgent }, Arc::clone(settings.schedule));
            let work = move || readahead.run(&place, is_urgent, &schedule);
            let thread = start_thread(FrontReadahead::THREAD, kind, settings.schedule, work).ok()?;
            Some((thread, transfer.into_socket()))
        });
        let (thread, socket) = started.unzip();
        (Answer::InFront { place: numbers, thread }, socket.into_iter().collect())
    }

    /// Starts a walker. Returns the sending end of its socket and the id of its thread.
    fn walk(&mut self, settings: KeeperSettings<'_>) -> io::Result<(OwnedFd, u32)> {
        let mount = self.mounted.clone().filter(|_| self.walk.is_none()).ok_or(io::ErrorKind::NotConnected)?;
        let (socket, walker) = LaunchWalker::new(mount)?;
        let pause = walker.pause();
        let thread = start_thread(LaunchWalker::THREAD, KeeperThread::Walk, settings.schedule, || walker.run())?;
        // If no thread can be started, a later request may ask again.
        self.walk = Some(pause);
        Ok((socket, thread))
    }

    /// Notes the FUSE mount at a place, and watches the process that serves it. Returns its mount ID.
    fn watch_mount(&mut self, place: Place) -> Option<u32> {
        let (mount_id, device) = (place.mount_id(), place.device());
        self.note_mount(place);
        self.abort_when_stuck(device);
        mount_id
    }

    /// Notes the mount at a place, and tells the standby.
    fn note_mount(&mut self, place: Place) {
        self.note(Note::Mounted { place: place.to_numbers(), is_front: self.is_front });
        self.mounted = Some(place);
    }

    /// Tells the standby, if this process is the keeper.
    fn note(&self, note: Note) {
        if let Some(noting) = &self.noting {
            noting.note(note);
        }
    }

    /// Arranges that the connection of the mount with this device number is aborted if the parent is killed and cannot
    /// end. Returns whether that is possible.
    fn abort_when_stuck(&mut self, device: Option<(u32, u32)>) -> bool {
        let abort = device.and_then(|device| Abort::open(device, &FuseConnections::default()).ok());
        let Some((abort, parent)) = abort.zip(self.parent.clone()) else { return false };
        let thread = thread::Builder::new().name(Abort::THREAD.to_owned());
        self.is_watched = thread.spawn(move || abort.when_stuck(&parent)).is_ok();
        self.is_watched
    }
}

/// Unmounts a mount, unless another one covers it.
fn unmount(mounted: &Place, detach: Detach) -> Result<(), UnmountError> {
    mounted.check_unmountable()?;
    mounted.unmount(detach)
}

/// Unmounts a mount that its user does not know of. fusermount3 may not be started while the process that served it takes up all
/// processes and threads that its user may have.
fn unmount_unconfirmed(mounted: &Place, parent: Option<&Parent>) {
    let until = Instant::now() + UNCONFIRMED_TIME_MAX;
    while mounted.is_mounted() && unmount(mounted, Detach::Lazily).is_err() && Instant::now() < until {
        if let Some(parent) = parent {
            parent.ends_within(UNCONFIRMED_INTERVAL);
        }
        thread::sleep(ATTEMPT_INTERVAL);
    }
}

/// Whether a mount that nobody serves any more is still there after the time that fusermount3 needs.
fn stays_dead(mounted: &Place) -> bool {
    thread::sleep(FUSERMOUNT_TIME_MAX);
    // The kernel may still have the attributes in its cache.
    let is_dead = |directory: PathBuf| rustix::fs::statfs(directory).is_err_and(|error| error == Errno::NOTCONN);
    mounted.is_mounted() && is_dead(mounted.path_now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::KernelOptions, schedule::Schedule};

    /// A change of the settings of a row.
    type Change = fn(&mut KeeperSettings<'_>);

    /// Calls `check` with settings that ask for nothing, changed by `change`.
    fn with_settings(options: &KernelOptions, change: Change, check: impl FnOnce(KeeperSettings<'_>)) {
        let schedule: Schedule = Arc::new(|_, _| {});
        let mut settings = KeeperSettings {
            directory: Some(Path::new("/nonexistent")),
            mountpoint: None,
            options,
            users_of: |_| String::new(),
            schedule: &schedule,
            temporary_directory: None,
            adopted: None,
            kept_front: None,
            may_have_front: false,
            must_have_front: false,
            may_permit_rings: false,
            may_unmount: true,
            may_walk: false,
        };
        change(&mut settings);
        check(settings);
    }

    #[test]
    fn a_keeper_answers_only_what_its_settings_ask_for() {
        let plain = KernelOptions::default();
        let reading_ahead = KernelOptions { readahead_bytes: Some(4096), ..plain.clone() };
        let elsewhere: Change = |settings| settings.directory = None;
        let adopted: Change = |settings| settings.adopted = Some((0, 4095));
        let nothing: Change = |_| {};
        let front: Change = |settings| settings.may_have_front = true;
        let walk: Change = |settings| settings.may_walk = true;
        let kept: Change = |settings| settings.may_unmount = false;
        let only_front: Change = |settings| (settings.may_have_front, settings.must_have_front) = (true, true);
        let rings: Change = |settings| settings.may_permit_rings = true;
        let front_with_rings: Change = |settings| (settings.may_have_front, settings.may_permit_rings) = (true, true);
        let rows = [
            (&plain, nothing, Request::Mount { has_rings: false }, true),
            (&plain, nothing, Request::Mount { has_rings: true }, false),
            (&plain, rings, Request::Mount { has_rings: true }, true),
            (&plain, elsewhere, Request::Mount { has_rings: false }, false),
            (&plain, adopted, Request::Mount { has_rings: false }, false),
            (&plain, only_front, Request::Mount { has_rings: false }, false),
            (&plain, nothing, Request::Adopt, false),
            (&plain, adopted, Request::Adopt, true),
            (&plain, nothing, Request::MountHidden { has_rings: false }, false),
            (&plain, front, Request::MountHidden { has_rings: false }, true),
            (&plain, front, Request::MountHidden { has_rings: true }, false),
            (&plain, rings, Request::MountHidden { has_rings: true }, false),
            (&plain, front_with_rings, Request::MountHidden { has_rings: true }, true),
            (
                &plain,
                nothing,
                Request::MountFront {
                    options: FrontOptions {
                        is_kept: false,
                        has_acls: true,
                        cpus_are_short: false,
                        has_direct_io: false,
                    },
                },
                false,
            ),
            (
                &plain,
                front,
                Request::MountFront {
                    options: FrontOptions {
                        is_kept: false,
                        has_acls: true,
                        cpus_are_short: false,
                        has_direct_io: false,
                    },
                },
                true,
            ),
            (
                &plain,
                front,
                Request::MountFront {
                    options: FrontOptions {
                        is_kept: true,
                        has_acls: true,
                        cpus_are_short: false,
                        has_direct_io: false,
                    },
                },
                false,
            ),
            (&plain, front_with_rings, Request::PermitRings, false),
            (&plain, nothing, Request::SetReadahead, false),
            (&reading_ahead, nothing, Request::SetReadahead, true),
            (&plain, nothing, Request::Walk, false),
            (&plain, walk, Request::Walk, true),
            (&plain, kept, Request::Unmount { is_lazy: false }, false),
            (&plain, kept, Request::FindUsers, false),
            (&plain, nothing, Request::Unmount { is_lazy: false }, true),
            (&plain, nothing, Request::Unmount { is_lazy: true }, true),
            (&plain, nothing, Request::FindUsers, true),
        ];
        for (number, (options, change, request, is_permitted)) in rows.into_iter().enumerate() {
            with_settings(options, change, |settings| {
                assert_eq!(settings.permits(request), is_permitted, "row {number}: {request:?}");
                if !is_permitted {
                    let mut service = Service::default();
                    let (answer, descriptors) = service.answer(request, settings);
                    let errno = answer.into_error().raw_os_error();
                    assert_eq!((errno, descriptors.len()), (Some(libc::EPERM), 0), "row {number}: {request:?}");
                    assert!(service.mounted.is_none() && service.hidden.is_none() && service.ring_permission.is_none());
                }
            });
        }
    }

    #[test]
    fn a_keeper_unmounts_nothing_before_it_has_mounted() {
        for is_lazy in [false, true] {
            with_settings(
                &KernelOptions::default(),
                |_| {},
                |settings| {
                    let (answer, _) = Service::default().answer(Request::Unmount { is_lazy }, settings);
                    assert!(matches!(answer, Answer::UnmountFailed { .. }), "{answer:?}");
                },
            );
        }
    }
}
