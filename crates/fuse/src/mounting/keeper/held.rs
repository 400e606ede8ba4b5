//! The mounts of a keeper, and its answers.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, Weak, mpsc},
    thread,
};

use floe_engine::{Priority, schedule_this_thread};

use super::{
    Kept,
    messages::{Answer, Question, RINGS_ARE_PERMITTED, priority_from_number},
    standby::{Note, Noting},
};
use crate::{
    Detach, Directory, MountTable, Unmounter,
    caller::is_administrator,
    connection::ring_permission::RingPermission,
    mounting::abort::Abort,
    mounting::front::HiddenMount,
    mounting::front_transfer::FrontMover,
    mounting::fusermount::AutoUnmount,
    mounting::launch_walk::{LaunchWalker, WalkPause},
    mounting::mountpoint::{Connected, connect},
    mounting::parent_sys::Parent,
    mounting::place::Place,
    mounting::read_ahead,
};

/// The mounts of a keeper.
#[derive(Default)]
pub(super) struct Held {
    /// The directory to mount on. It is closed once it has a mount: its file system would be busy.
    mountpoint: Option<Directory>,
    hidden: Option<HiddenMount>,
    /// Held until the hidden mount is served.
    pub(super) ring_permission: Option<RingPermission>,
    pub(super) mounted: Option<Unmounter>,
    /// Whether the mount is a front.
    pub(super) is_front: bool,
    /// Whether this process has made the mount, and its user does not know yet that it works.
    pub(super) is_unproven: bool,
    /// The process that this one serves.
    pub(super) parent: Option<Arc<Parent>>,
    /// Whether a thread aborts the connection if that process is killed and cannot end.
    pub(super) is_watched: bool,
    /// Stops the thread that looks up the names of a launch.
    walk: Option<Arc<WalkPause>>,
    /// Tells the process that stands by what this one does; `None` if it is that process.
    noting: Option<Noting>,
}

impl Held {
    /// Holds no mount yet. `parent` is the process that this one serves.
    pub(super) fn new(mountpoint: Option<Directory>, parent: Option<Arc<Parent>>, noting: Option<Noting>) -> Self {
        Self { mountpoint, parent, noting, ..Self::default() }
    }

    /// Holds the FUSE mount at a place. Returns the answer, which contains the number of the mount.
    fn hold(&mut self, place: Place) -> Answer {
        let text = id_text(&place);
        self.keep(place);
        self.abort_when_stuck(self.mounted.as_ref().and_then(Unmounter::device));
        Answer { text, ..Answer::done() }
    }

    /// Keeps the mount at a place, and tells the process that stands by. Returns the mount.
    fn keep(&mut self, place: Place) -> Unmounter {
        self.note(Note::Mounted { place: place.to_numbers(), is_front: self.is_front });
        self.mounted.insert(Unmounter::new(Some(place), Weak::new(), None)).clone()
    }

    /// Tells the process that stands by, if this one is the keeper.
    pub(super) fn note(&self, note: Note) {
        if let Some(noting) = &self.noting {
            noting.note(note);
        }
    }

    /// Holds the mount on a directory if it has this device number and a program serves it.
    fn adopt(&mut self, directory: &Path, device: (u32, u32)) -> Option<Answer> {
        let table = MountTable::read().unwrap_or_default();
        let entry = table.on(directory).filter(|entry| entry.is_served() && entry.device == device)?;
        self.is_front = entry.is_front();
        Some(self.hold(Place::of(entry)))
    }

    /// Holds the mount of a keeper that was killed, if it still exists.
    pub(super) fn inherit(&mut self, place: Place, is_front: bool, is_unproven: bool) {
        if Unmounter::new(Some(place.clone()), Weak::new(), None).is_mounted() {
            (self.is_front, self.is_unproven) = (is_front, is_unproven);
            self.hold(place);
        }
    }

    /// Arranges that the connection of the mount with this device number is aborted if the parent is killed and cannot
    /// end. Returns whether that is possible.
    fn abort_when_stuck(&mut self, device: Option<(u32, u32)>) -> bool {
        let abort = device.and_then(|device| Abort::open(device).ok());
        let Some((abort, parent)) = abort.zip(self.parent.clone()) else { return false };
        let thread = thread::Builder::new().name(Abort::THREAD.to_owned());
        self.is_watched = thread.spawn(move || abort.when_stuck(&parent)).is_ok();
        self.is_watched
    }

    /// Starts a walker. Returns the sending end of its socket and the id of its thread.
    fn walk(&mut self, priority: Priority) -> io::Result<(OwnedFd, u32)> {
        let mount = self.mounted.clone().filter(|_| self.walk.is_none()).ok_or(io::ErrorKind::NotConnected)?;
        let (socket, walker) = LaunchWalker::new(mount)?;
        let pause = walker.pause();
        let thread = started(LaunchWalker::THREAD, move || {
            schedule_this_thread(priority);
            walker.run();
        })?;
        // If no thread can be started, a later question may ask again.
        self.walk = Some(pause);
        Ok((socket, thread))
    }

    /// Answers a question, with descriptors. Refuses questions that the settings do not ask for.
    pub(super) fn answer(&mut self, question: Question, kept: Kept<'_>) -> (Answer, Vec<OwnedFd>) {
        if !kept.permits(question) {
            return (Answer::failed(4, &io::Error::from_raw_os_error(libc::EPERM)), Vec::new());
        }
        if let (Question::Unmount | Question::UnmountLazily, Some(walk)) = (question, &self.walk) {
            walk.stop();
        }
        // The process serves the hidden mount before it sends another question, so the permission is no longer needed.
        self.ring_permission = None;
        let unmount = |detach| match self.mounted.as_ref().map(|mounted| mounted.unmount(detach)) {
            None => Answer::failed(1, &io::ErrorKind::NotConnected.into()),
            Some(result) => Answer::of_unmount(result),
        };
        let answer = match question {
            Question::Mount => match self.mountpoint.take().filter(|_| self.mounted.is_none()) {
                None => Answer::failed(4, &io::Error::from_raw_os_error(libc::EBUSY)),
                Some(mountpoint) => match connect(&mountpoint, kept.options) {
                    Ok((Connected { device, auto_unmount }, place)) => {
                        self.is_unproven = true;
                        let auto_unmount = auto_unmount.map(AutoUnmount::into_socket);
                        return (self.hold(place), [device].into_iter().chain(auto_unmount).collect());
                    }
                    Err(error) => Answer::of_mount_error(error),
                },
            },
            Question::Adopt => match kept.directory.zip(kept.adopted).filter(|_| self.mounted.is_none()) {
                None => Answer::failed(4, &io::Error::from_raw_os_error(libc::EBUSY)),
                Some((directory, device)) => self
                    .adopt(directory, device)
                    .unwrap_or_else(|| Answer::failed(4, &io::Error::from_raw_os_error(libc::ENOTCONN))),
            },
            Question::MountHidden(_) if self.hidden.is_some() || self.mounted.is_some() => {
                Answer::failed(4, &io::Error::from_raw_os_error(libc::EBUSY))
            }
            Question::MountHidden(rings) => match floe_fuse_wire::open() {
                Err(error) => Answer::failed(1, &error),
                Ok(device) => {
                    let permission = (rings > 0).then(RingPermission::give).flatten();
                    match HiddenMount::new(device.as_fd()) {
                        Ok(hidden) => {
                            let text = permission.as_ref().map_or("", |_| RINGS_ARE_PERMITTED).to_owned();
                            (self.hidden, self.ring_permission) = (Some(hidden), permission);
                            return (Answer { text, ..Answer::done() }, vec![device]);
                        }
                        Err(error) => Answer::refused(&error),
                    }
                }
            },
            Question::MountFront(priority) => {
                match self.mountpoint.as_ref().zip(self.hidden.take()).filter(|_| self.mounted.is_none()) {
                    None => Answer::failed(4, &io::Error::from_raw_os_error(libc::EBUSY)),
                    Some((mountpoint, hidden)) => match hidden.put_front(mountpoint, kept.options) {
                        Ok((place, transfer)) => {
                            self.mountpoint = None;
                            (self.is_front, self.is_unproven) = (true, true);
                            let id = id_text(&place);
                            let mounted = self.keep(place);
                            // Without it, a store to the hidden image could keep a killed process from ending.
                            let transfer = transfer.filter(|(_, mover)| self.abort_when_stuck(mover.hidden_device()));
                            let priority = priority_from_number(priority);
                            let (thread, sending) = transfer
                                .and_then(|(sending, mover)| {
                                    let thread =
                                        started(FrontMover::THREAD, move || mover.run(&mounted, priority)).ok()?;
                                    Some((thread, sending.into_socket()))
                                })
                                .unzip();
                            let text = format!("{} {id}", thread.unwrap_or(0));
                            return (Answer { text, ..Answer::done() }, sending.into_iter().collect());
                        }
                        Err(error) => Answer::refused(&error),
                    },
                }
            }
            Question::Unmount => unmount(Detach::Never),
            Question::UnmountLazily => unmount(Detach::Lazily),
            Question::ReadAhead => {
                let device = self.mounted.as_ref().and_then(Unmounter::device);
                match device.zip(kept.options.read_ahead_bytes).map(|(device, bytes)| read_ahead::set(device, bytes)) {
                    Some(Ok(())) => Answer::done(),
                    Some(Err(error)) => Answer::failed(4, &error),
                    None => Answer::failed(4, &io::ErrorKind::Unsupported.into()),
                }
            }
            Question::Users => {
                let directory = self.mounted.as_ref().and_then(Unmounter::path_now);
                let text = directory.as_deref().map(kept.users_of).unwrap_or_default();
                Answer { text, ..Answer::done() }
            }
            Question::Walk(priority) => match self.walk(priority_from_number(priority)) {
                Ok((socket, thread)) => {
                    return (Answer { text: thread.to_string(), ..Answer::done() }, vec![socket]);
                }
                Err(error) => Answer::failed(4, &error),
            },
            Question::IsAdministrator(thread) if is_administrator(thread) => Answer::done(),
            Question::IsAdministrator(_) => Answer { kind: 1, ..Answer::done() },
            Question::Works => {
                self.is_unproven = false;
                self.note(Note::Works);
                Answer::done()
            }
            Question::End => Answer::done(),
        };
        (answer, Vec::new())
    }
}

/// The number of a mount in the mount table, as text: empty without a table.
fn id_text(place: &Place) -> String {
    place.listed().map(|id| id.to_string()).unwrap_or_default()
}

/// Starts a thread that does `work`, and returns its id.
fn started(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<u32> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        work();
    })?;
    receiver.recv().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::MountOptions;

    const DIRECTORY: &str = "/nonexistent";

    /// Settings that ask for nothing, changed by `change`.
    fn settings<'a>(options: &'a MountOptions, change: impl FnOnce(&mut Kept<'a>)) -> Kept<'a> {
        let mut kept = Kept {
            directory: Some(Path::new(DIRECTORY)),
            mountpoint: None,
            options,
            users_of: |_| String::new(),
            passing: None,
            adopted: None,
            may_have_front: false,
            must_have_front: false,
            may_permit_rings: false,
            may_walk: false,
        };
        change(&mut kept);
        kept
    }

    /// A change of the settings of a row.
    type Change = fn(&mut Kept<'_>);

    #[test]
    fn a_keeper_answers_only_what_its_settings_ask_for() {
        let plain = MountOptions { threads: NonZero::<usize>::MIN, ..MountOptions::default() };
        let reading_ahead = MountOptions { read_ahead_bytes: Some(4096), ..plain.clone() };
        let (elsewhere, adopted): (Change, Change) =
            (|kept| kept.directory = None, |kept| kept.adopted = Some((0, 4095)));
        let (nothing, front, walk): (Change, Change, Change) =
            (|_| {}, |kept| kept.may_have_front = true, |kept| kept.may_walk = true);
        let only_front: Change = |kept| (kept.may_have_front, kept.must_have_front) = (true, true);
        let (rings, front_with_rings): (Change, Change) =
            (|kept| kept.may_permit_rings = true, |kept| (kept.may_have_front, kept.may_permit_rings) = (true, true));
        let rows = [
            (&plain, nothing, Question::Mount, true),
            (&plain, elsewhere, Question::Mount, false),
            (&plain, adopted, Question::Mount, false),
            (&plain, only_front, Question::Mount, false),
            (&plain, nothing, Question::Adopt, false),
            (&plain, adopted, Question::Adopt, true),
            (&plain, nothing, Question::MountHidden(0), false),
            (&plain, front, Question::MountHidden(0), true),
            (&plain, front, Question::MountHidden(1), false),
            (&plain, front, Question::MountHidden(u32::MAX), false),
            (&plain, rings, Question::MountHidden(1), false),
            (&plain, front_with_rings, Question::MountHidden(1), true),
            (&plain, nothing, Question::MountFront(0), false),
            (&plain, front, Question::MountFront(0), true),
            (&plain, nothing, Question::ReadAhead, false),
            (&reading_ahead, nothing, Question::ReadAhead, true),
            (&plain, nothing, Question::Walk(0), false),
            (&plain, walk, Question::Walk(0), true),
            (&plain, nothing, Question::Unmount, true),
            (&plain, nothing, Question::UnmountLazily, true),
            (&plain, nothing, Question::Users, true),
        ];
        for (options, change, question, is_permitted) in rows {
            let kept = settings(options, change);
            assert_eq!(kept.permits(question), is_permitted, "{question:?} with {kept:?}");
            if !is_permitted {
                let mut held = Held::default();
                let (answer, descriptors) = held.answer(question, kept);
                assert_eq!((answer.errno, descriptors.len()), (libc::EPERM, 0), "{question:?} with {kept:?}");
                assert!(held.mounted.is_none() && held.hidden.is_none() && held.ring_permission.is_none());
            }
        }
    }

    #[test]
    fn a_keeper_unmounts_nothing_before_it_has_mounted() {
        let options = MountOptions::default();
        for question in [Question::Unmount, Question::UnmountLazily] {
            let (answer, _) = Held::default().answer(question, settings(&options, |_| {}));
            assert_ne!(answer.kind, super::super::messages::DONE, "{question:?}");
        }
    }

    #[test]
    fn questions_name_no_paths() {
        for question in [Question::Mount, Question::Unmount, Question::UnmountLazily, Question::MountFront(7)] {
            let bytes = question.to_bytes();
            assert_eq!(Question::from_bytes(&bytes), Some(question));
            let with_path = [&bytes[..], b"/etc"].concat();
            assert_eq!(Question::from_bytes(&with_path), None, "{question:?} with a path");
            assert_eq!(Question::from_bytes(&bytes[..4]), None, "{question:?} cut short");
        }
        assert_eq!(Question::from_bytes(&[0; 5]), None);
        assert_eq!(Question::from_bytes(&[13, 0, 0, 0, 0]), None);
    }
}
