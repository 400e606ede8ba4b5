//! A command that runs while this program records it, or waits for it otherwise.

use std::{
    io,
    os::unix::process::ExitStatusExt,
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

use crate::{
    cancellation::unless_ignored,
    fail::{Exit, Fail},
};

/// How long a command may run on after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The polling interval for the end of a command that got a signal.
const GLANCE: Duration = Duration::from_millis(10);

/// A launch that ends before the recording program does: signals that ask to end go to the command.
pub(crate) struct Launch {
    signals: SignalsInfo<WithOrigin>,
    grace: Duration,
}

impl Launch {
    /// Redirects signals: from here on they end the command, not this program.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    pub(crate) fn prepare() -> Result<Self, Fail> {
        let watched = [unless_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]), vec![SIGCHLD]].concat();
        let signals = SignalsInfo::<WithOrigin>::new(watched);
        let signals = signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))?;
        Ok(Self { signals, grace: GRACE })
    }

    /// The command is a Floe process that passes signals on to another one, with this number of such processes in between. It gets more time
    /// to end.
    pub(crate) fn of_launches(self, count: u32) -> Self {
        Self { grace: GRACE * (count + 1), ..self }
    }

    /// Runs a command until it ends, possibly by a signal. Returns its exit status.
    ///
    /// # Errors
    /// The command cannot be run.
    pub(crate) fn run(mut self, mut command: Command) -> Result<ExitStatus, Fail> {
        let program = command.get_program().to_owned();
        let failed = |error: io::Error| Fail::failed(format!("{}: {error}", program.shown()));
        let mut child = command.spawn().map_err(failed)?;
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
            if start.elapsed() >= self.grace || self.signals.pending().any(|origin| asks_to_end(&origin)) {
                say!("floe: the command does not end; killing it");
                child.kill()?;
                return child.wait();
            }
            thread::sleep(GLANCE);
        }
    }
}

/// The exit code that a shell reports for the command.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(Exit::Failed.code())
}

/// Whether a signal must be passed to the command. A signal from a key at the terminal reached the command as well, so
/// it is not passed on.
fn asks_to_end(origin: &Origin) -> bool {
    origin.signal != SIGCHLD && !(matches!(origin.signal, SIGINT | SIGQUIT) && origin.cause == Cause::Kernel)
}
