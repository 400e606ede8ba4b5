//! Ends a mount after a signal.

use std::{
    io,
    path::PathBuf,
    process,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use floe_fuse::{Abandoner, Unmounter};
use floe_image::{ShownName, start_error};
use floe_keeper::{Detach, Keeper, UnmountError, UnmountReason};
use signal_hook::iterator::Signals;

use crate::fail::Exit;
use floe_mount::Mounted;

/// How often to look for a second signal, and whether a mount is still covered.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long an unmounted mount may wait for its last requests, which are readahead of the kernel: no program waits for them. Long
/// enough to find out on a busy machine that the mount was detached, and that its users are still served.
const REQUEST_PATIENCE: Duration = Duration::from_secs(3);

/// Unmounts on the first signal, and ends the process on the second.
pub(super) struct SignalledEnd {
    unmounter: Unmounter,
    abandoner: Abandoner,
    /// The mountpoint, for messages.
    directory: PathBuf,
    keeper: Arc<Keeper>,
}

/// The state of the mount after a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The system call has not returned.
    Unmounting,
    /// It is unmounted, and the process ends by itself.
    Unmounted,
    /// It is unmounted, and ends with its last user.
    Detached,
    /// It is to be unmounted as soon as no other mount covers it.
    Covered,
    /// It cannot be unmounted.
    Mounted,
}

impl SignalledEnd {
    /// Ends a mount of this process.
    pub(super) fn of(mounted: &Mounted) -> Self {
        let (unmounter, abandoner) = (mounted.unmounter(), mounted.abandoner());
        Self { unmounter, abandoner, directory: mounted.directory().to_owned(), keeper: Arc::clone(mounted.keeper()) }
    }

    /// Starts the thread that waits for the signals. Without it, signals have no effect.
    ///
    /// # Errors
    /// The process can start no thread.
    pub(super) fn start(self, signals: Signals) -> io::Result<()> {
        thread::Builder::new()
            .name("floe-signals".to_owned())
            .spawn(move || self.run(signals))
            .map(drop)
            .map_err(start_error)
    }

    fn run(self, mut signals: Signals) {
        if signals.forever().next().is_none() {
            return;
        }
        let this = Arc::new(self);
        let (sender, states) = mpsc::channel();
        let unmounting = Arc::clone(&this);
        // An unmount can wait for requests in progress. This thread keeps waiting for the second signal.
        let work = move || unmounting.unmount_when_uncovered(&sender);
        let mut state = State::Unmounting;
        let mut gone_since = None;
        let mut is_over = false;
        if thread::Builder::new().name("floe-unmount".to_owned()).spawn(work).is_err() {
            // No second signal is seen until the system call returns.
            state = this.unmount_here(&mut signals);
            is_over = true;
        }
        while !is_over {
            match states.recv_timeout(LOOK_INTERVAL) {
                Ok(next) => state = next,
                // The unmount has not returned.
                Err(RecvTimeoutError::Timeout) if state != State::Covered && !this.unmounter.is_mounted() => {
                    if gone_since.get_or_insert_with(Instant::now).elapsed() >= REQUEST_PATIENCE {
                        this.abandoner.abandon();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_over = true,
            }
            if signals.pending().next().is_some() {
                this.stop_now(state);
            }
        }
        if state == State::Unmounted {
            state = this.outlived(&mut signals);
        }
        if signals.forever().next().is_some() {
            this.stop_now(state);
        }
    }

    /// Waits for the process to end after the unmount. If it does not, either the files are also mounted elsewhere, and the mount
    /// continues, or the kernel waits for its readahead, and the mount is abandoned. Returns the new state.
    fn outlived(&self, signals: &mut Signals) -> State {
        let (since, before) = (Instant::now(), self.abandoner.progress());
        while since.elapsed() < REQUEST_PATIENCE {
            thread::sleep(LOOK_INTERVAL);
            if signals.pending().next().is_some() {
                self.stop_now(State::Detached);
            }
        }
        let (now, elsewhere) = (self.abandoner.progress(), self.unmounter.mountpoint_elsewhere());
        if now.waiting > 0 && now.answered == before.answered && elsewhere.is_none() {
            self.abandoner.abandon();
            return State::Unmounted;
        }
        let place = elsewhere.map_or("in another mount namespace".to_owned(), |path| format!("on {}", path.shown()));
        let directory = self.directory.shown();
        say!(
            "floe: {directory} is no longer mounted, but its files still are {place}; still serving; signal again to stop now"
        );
        State::Detached
    }

    /// Unmounts as soon as no other mount covers this one. Tells the states that the mount goes through.
    fn unmount_when_uncovered(&self, states: &Sender<State>) {
        let mut state = self.unmount();
        // The receiver lives as long as the process.
        let _ = states.send(state);
        while state == State::Covered {
            thread::sleep(LOOK_INTERVAL);
            if !self.unmounter.is_covered() {
                state = self.unmount();
                let _ = states.send(state);
            }
        }
    }

    /// Unmounts as soon as no other mount covers this one, on this thread, because no other one can be started. Returns the last
    /// state.
    fn unmount_here(&self, signals: &mut Signals) -> State {
        let mut state = self.unmount();
        while state == State::Covered {
            thread::sleep(LOOK_INTERVAL);
            if signals.pending().next().is_some() {
                self.stop_now(state);
            }
            if !self.unmounter.is_covered() {
                state = self.unmount();
            }
        }
        state
    }

    fn unmount(&self) -> State {
        let directory = self.directory.shown();
        let result = match self.unmounter.unmount(Detach::Never) {
            Err(UnmountError { reason: UnmountReason::Busy, .. }) => {
                let users = self.users();
                say!("floe: {directory} is in use {users}; still serving current users; signal again to stop now");
                self.unmounter.unmount(Detach::Lazily).map(|()| State::Detached)
            }
            result => result.map(|()| State::Unmounted),
        };
        match result {
            Ok(state) => state,
            Err(UnmountError { reason: UnmountReason::NotMounted, .. }) => State::Unmounted,
            Err(UnmountError { reason: UnmountReason::Covered, .. }) => {
                say!(
                    "floe: {directory} is covered by another mount; still serving until it is uncovered; signal again to stop now"
                );
                State::Covered
            }
            Err(UnmountError { reason: UnmountReason::Failed { error }, .. })
                if error.kind() == io::ErrorKind::BrokenPipe =>
            {
                say!(
                    "floe: the process that unmounts has ended: run floe umount {directory}, or signal again to stop now"
                );
                State::Mounted
            }
            Err(error) => {
                say!("floe: {error}; still serving; signal again to stop now");
                State::Mounted
            }
        }
    }

    /// Ends the process, whose connection to the kernel ends with it.
    fn stop_now(&self, state: State) -> ! {
        let directory = self.directory.shown();
        match state {
            State::Unmounted => {}
            State::Unmounting | State::Detached => {
                say!("floe: stopped serving {directory}: the connection is aborted, and its users get errors");
            }
            State::Covered => say!(
                "floe: stopped serving {directory}: the connection is aborted, and a dead mount is left under the other one: \
                 uncover it and run floe umount {directory}"
            ),
            State::Mounted => say!(
                "floe: stopped serving {directory}: the connection is aborted, and a dead mount is left: run floe umount \
                 {directory}"
            ),
        }
        process::exit(Exit::Failed.code().into())
    }

    /// The processes that use the mount, as text.
    fn users(&self) -> String {
        self.keeper.users().unwrap_or_default()
    }
}
