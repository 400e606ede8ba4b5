//! Runs the launch that is recorded.

use std::{
    ffi::OsString,
    io,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause, Origin},
};

use crate::{ending_signals::unless_ignored, fail::Fail, fake};

/// How long a command may run on after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The polling interval for the end of a command that got a signal.
const GLANCE: Duration = Duration::from_millis(10);

/// A launch that ends before the recording program does: signals that ask to end go to the command.
pub(super) struct Launch {
    signals: SignalsInfo<WithOrigin>,
}

impl Launch {
    /// Redirects signals: from here on they end the command, not this program.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    pub(super) fn prepare() -> Result<Self, Fail> {
        let watched = [unless_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]), vec![SIGCHLD]].concat();
        let signals = SignalsInfo::<WithOrigin>::new(watched);
        Ok(Self { signals: signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))? })
    }

    /// Runs a command until it ends, possibly by a signal. Returns its exit status.
    ///
    /// # Errors
    /// The command cannot be run.
    pub(super) fn run(mut self, command: &[OsString]) -> Result<ExitStatus, Fail> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Fail::usage("a command is missing"));
        };
        let failed = |error: io::Error| Fail::failed(format!("{}: {error}", program.shown()));
        let mut command = Command::new(program);
        fake::enter_again(&mut command);
        let mut child = command.args(arguments).spawn().map_err(failed)?;
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            let ending = self.signals.wait().find(asks_to_end);
            if let Some(origin) = ending {
                return self.end(&mut child, origin.signal).map_err(failed);
            }
        }
    }

    /// Passes a signal on. Kills the command if it does not end, or at a second signal.
    fn end(&mut self, child: &mut Child, signal: i32) -> io::Result<ExitStatus> {
        if let Some(signal) = Signal::from_named_raw(signal) {
            kill_process(Pid::from_child(child), signal)?;
        }
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= GRACE || self.signals.pending().any(|origin| asks_to_end(&origin)) {
                say!("floe: the command does not end; killing it");
                child.kill()?;
                return child.wait();
            }
            thread::sleep(GLANCE);
        }
    }
}

/// Whether a signal must be passed to the command. A signal from a key at the terminal reached the command as well, so
/// it is not passed on.
fn asks_to_end(origin: &Origin) -> bool {
    origin.signal != SIGCHLD && !(matches!(origin.signal, SIGINT | SIGQUIT) && origin.cause == Cause::Kernel)
}
