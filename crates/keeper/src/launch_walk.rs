//! Looks up the names of a recorded launch ahead of its programs.
//!
//! The kernel caches a name only after a process has looked it up: FUSE has no notification that adds a name. The
//! thread that looks names up must not belong to the process that serves the mount. If that process were killed while
//! one of its own threads waited for a reply, the thread would keep `/dev/fuse` open, so the connection would not end,
//! and the thread would wait forever. So the thread runs in the keeper. It takes batches of paths over a socket, and
//! answers each batch when it is done.
//!
//! For a mount of another user, the service starts no such thread, which would wait for that user's process. There, a process of the
//! user ([`LaunchWalker::over`]) does the same.
//!
//! During a batch, the thread holds the root of a private clone of the mount, which does not make the users' mount busy.
//! Without the right to clone, it holds the root of the users' mount.

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use floe_ipc::{Encoded, encoded, receive, send};
use floe_sync::{Condvar, Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, RawDir, ResolveFlags, fstat, openat, openat2, readlinkat},
    io::Errno,
    mount::{OpenTreeFlags, open_tree},
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair},
};

use crate::{place::Place, serving_thread::may_wait_for_mount, table::TABLE_PATH};

/// The maximum length of a batch in bytes.
const BATCH_BYTES_MAX: usize = 32 << 10;

/// The maximum number of steps in a batch.
const BATCH_STEPS_MAX: usize = 256;

/// The maximum length of a path in bytes.
const PATH_BYTES_MAX: usize = 4095;

/// The maximum number of `getdents` calls for one directory.
const LIST_CALLS_MAX: usize = 1024;

/// How long an unmount waits for the thread to release the mount.
const PAUSE_TIME_MAX: Duration = Duration::from_secs(1);

encoded! {
    /// An action on a path.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum WalkAction {
        /// Look it up. If there is no such name, the kernel caches that.
        1 => Look,
        /// Read the target of a symbolic link.
        2 => ReadLink,
        /// List a directory.
        3 => List,
    }
}

encoded! {
    /// An action on one path.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(crate) struct WalkStep {
        pub(crate) path: Vec<u8>,
        pub(crate) action: WalkAction,
    }
}

/// A batch of paths to look up, in order.
#[derive(Clone, Debug, Default)]
pub struct WalkBatch {
    steps: Vec<WalkStep>,
    /// The length of its message, apart from a constant.
    bytes: usize,
}

encoded! {
    /// The outcome of a batch, in numbers of paths.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Walked {
        /// Paths that exist.
        pub found: u32,
        /// Paths that do not exist, which the kernel now knows.
        pub missing: u32,
        /// Paths that could not be looked up, or were not, because the mount is gone.
        pub failed: u32,
    }
}

/// The sending end: sends batches to the thread.
#[derive(Debug)]
pub struct LaunchWalk {
    socket: OwnedFd,
    thread: u32,
}

/// The receiving end: looks the paths up.
#[derive(Debug)]
pub struct LaunchWalker {
    socket: OwnedFd,
    mount: Place,
    pause: Arc<WalkPause>,
}

/// Stops a walker, so that it releases the mount.
#[derive(Debug, Default)]
pub(crate) struct WalkPause {
    state: Mutex<WalkState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WalkState {
    is_stopped: bool,
    is_walking: bool,
}

impl WalkBatch {
    /// Adds a path within the mount, with or without a leading slash. Returns `false` if the batch is full. Paths that no
    /// file can have are left out.
    pub fn push(&mut self, path: &[u8], action: WalkAction) -> bool {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path.len() > PATH_BYTES_MAX || path.contains(&0) {
            return true;
        }
        let step = WalkStep { path: path.to_owned(), action };
        let bytes = self.bytes + step.to_bytes().len();
        if self.steps.len() >= BATCH_STEPS_MAX || bytes > BATCH_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.steps.push(step);
        true
    }

    /// The number of paths.
    pub fn len(&self) -> u32 {
        self.steps.len() as u32
    }

    /// Whether there are no paths.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl LaunchWalk {
    /// The sending end over a socket. `thread` is the id of the thread at the other end; 0 if that is unknown.
    pub fn new(socket: OwnedFd, thread: u32) -> Self {
        Self { socket, thread }
    }

    /// The id of the thread that looks the paths up.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Sends a batch without waiting for its outcome. Two batches may be in progress at a time.
    ///
    /// # Errors
    /// The walker has ended, or too many batches are in progress.
    pub fn send(&self, batch: &WalkBatch) -> io::Result<()> {
        Ok(send(&self.socket, &batch.steps, &[], SendFlags::DONTWAIT)?)
    }

    /// Waits until the oldest batch is done, for at most `time`; then returns `None`.
    ///
    /// # Errors
    /// The walker has ended.
    pub fn wait(&self, time: Duration) -> io::Result<Option<Walked>> {
        let time =
            Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut waiting, Some(&time)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some((walked, _))) => Ok(Some(walked)),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl LaunchWalker {
    /// The name of the thread that runs this.
    pub(crate) const THREAD: &str = "floe-walk";

    /// The sockets of a walk: of the sending end, and of this one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// A walker for a mount over its socket.
    pub fn over(socket: OwnedFd, mount: Place) -> Self {
        Self { socket, mount, pause: Arc::default() }
    }

    /// Creates a walker for a mount, and the sending end of its socket.
    ///
    /// # Errors
    /// No socket can be created.
    pub(crate) fn new(mount: Place) -> io::Result<(OwnedFd, Self)> {
        let (ours, theirs) = Self::sockets()?;
        Ok((ours, Self::over(theirs, mount)))
    }

    pub(crate) fn pause(&self) -> Arc<WalkPause> {
        Arc::clone(&self.pause)
    }

    /// Walks until the other end is closed or the mount is unmounted.
    pub fn run(self) {
        may_wait_for_mount();
        let Ok(table) = File::open(TABLE_PATH) else { return };
        while let Ok(Some((steps, _))) = receive::<Vec<WalkStep>>(&self.socket, RecvFlags::empty()) {
            if !self.pause.begin() {
                return;
            }
            let walked = self.walk(&steps, &table);
            self.pause.end();
            if send(&self.socket, &walked, &[], SendFlags::empty()).is_err() {
                return;
            }
        }
    }

    fn walk(&self, steps: &[WalkStep], table: &File) -> Walked {
        let mut walked = Walked::default();
        let root = self.root();
        for WalkStep { path, action } in steps {
            let is_left = self.pause.is_stopped() || has_changed(table) && !self.mount.is_mounted();
            let result = match &root {
                Some(root) if !is_left => go_to(root.as_fd(), path, *action),
                _ => Err(Errno::STALE),
            };
            match result {
                Ok(()) => walked.found += 1,
                Err(Errno::NOENT) => walked.missing += 1,
                // Programs that need the name receive the error.
                Err(_) => walked.failed += 1,
            }
        }
        walked
    }

    /// The root of the mount; `None` if something else is mounted there by now.
    fn root(&self) -> Option<OwnedFd> {
        let directory = self.mount.path_now();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let own = || openat(CWD, &directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = open_tree(CWD, &directory, flags).or_else(|_| own()).ok()?;
        let device = fstat(&root).ok()?.st_dev;
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        (self.mount.device() == Some(device)).then_some(root)
    }
}

/// Whether the mount table has changed since the last call.
fn has_changed(table: &File) -> bool {
    let mut waiting = [PollFd::new(table, PollFlags::PRI | PollFlags::ERR)];
    poll(&mut waiting, Some(&Timespec::default())) != Ok(0)
}

/// Looks a path up beneath `root`, without following links, and performs the action.
fn go_to(root: BorrowedFd<'_>, path: &[u8], action: WalkAction) -> Result<(), Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let open = |flags: OFlags| {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        openat2(root, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    let found = open(OFlags::PATH)?;
    match action {
        WalkAction::Look => {}
        WalkAction::ReadLink => drop(readlinkat(&found, c"", Vec::new())?),
        WalkAction::List => {
            let directory = open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut space = vec![MaybeUninit::uninit(); 32 << 10];
            let mut entries = RawDir::new(directory, &mut space);
            let mut calls = 0;
            while calls < LIST_CALLS_MAX {
                calls += usize::from(entries.is_buffer_empty());
                let Some(entry) = entries.next() else { break };
                entry?;
            }
        }
    }
    Ok(())
}

impl WalkPause {
    /// Ends the walk, and waits for at most [`PAUSE_TIME_MAX`] until the walker has released the mount.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        let _ = self.changed.wait_timeout_while(state, PAUSE_TIME_MAX, |state| state.is_walking);
    }

    fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Whether a batch may begin.
    fn begin(&self) -> bool {
        let mut state = self.lock();
        state.is_walking = !state.is_stopped;
        state.is_walking
    }

    fn end(&self) {
        self.lock().is_walking = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, WalkState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use floe_ipc::MESSAGE_BYTES_MAX;

    use super::*;

    #[test]
    fn batches_have_a_limit() {
        let mut batch = WalkBatch::default();
        for (path, is_in_batch) in
            [(&b"/bin/sh"[..], true), (b"lib", true), (b"/", true), (&[b'a'; 5000], false), (b"a\0b", false)]
        {
            let before = batch.len();
            assert!(batch.push(path, WalkAction::Look));
            assert_eq!(batch.len() > before, is_in_batch, "{}", String::from_utf8_lossy(path));
        }
        assert_eq!(batch.steps[0].path, b"bin/sh");
        while batch.push(&[b'a'; 1000], WalkAction::Look) {}
        assert!(batch.steps.to_bytes().len() <= MESSAGE_BYTES_MAX && batch.steps.len() < BATCH_STEPS_MAX);
        let mut batch = WalkBatch::default();
        while batch.push(b"a", WalkAction::Look) {}
        assert_eq!(batch.steps.len(), BATCH_STEPS_MAX);
    }

    #[test]
    fn names_are_looked_up_beneath_the_root_alone() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("d")).expect("ours");
        std::fs::write(root.join("d/file"), "text").expect("ours");
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("ours");
        let root = openat(CWD, &root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it is there");
        for (path, action, expected) in [
            (&b"d/file"[..], WalkAction::Look, Ok(())),
            (b"", WalkAction::Look, Ok(())),
            (b"d", WalkAction::List, Ok(())),
            (b"link", WalkAction::ReadLink, Ok(())),
            (b"link", WalkAction::Look, Ok(())),
            (b"link/passwd", WalkAction::Look, Err(Errno::LOOP)),
            (b"d/none", WalkAction::Look, Err(Errno::NOENT)),
            (b"../root", WalkAction::Look, Err(Errno::XDEV)),
            (b"/etc", WalkAction::Look, Err(Errno::XDEV)),
        ] {
            let found = go_to(root.as_fd(), path, action);
            assert_eq!(found, expected, "{} {action:?}", String::from_utf8_lossy(path));
        }
    }
}
