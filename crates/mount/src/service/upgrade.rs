//! Replaces the program of the service: `floe upgrade`.
//!
//! The process stays, and with it the processes that it has started, its sockets and its clients. It executes the new program once
//! nothing is in progress, and leaves it all descriptors ([`Succession`]). The new program then replaces the domains.

use std::{
    env,
    io::{self, Read},
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::{atomic::Ordering::Relaxed, mpsc},
    thread,
    time::{Duration, Instant},
};

use floe_image::start_error;
use floe_ipc::protocol::RefusalKind;
use rustix::{
    fs::{Access, AtFlags, CWD, FileType, accessat, fstat},
    io::{FdFlags, fcntl_setfd, read},
};

use super::{
    domain_process::{DomainProcess, STATE_VARIABLE},
    kept_image::Stage,
    ledger::Ledger,
    pending_upgrade::Pending,
    refusal::Refusal,
    settings::{settings_of_request, settings_of_service},
    succession::{CHECK, CHECKED, PassedSocket, Succession},
};
use crate::{daemon::last_message, failure::Failure};

/// How long the new program may take to check whether it can continue the service.
const CHECK_TIME_MAX: Duration = Duration::from_secs(30);

/// How long mounts in progress are waited for.
const QUIET_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval at which they are looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// The maximum length of what the new program prints while it checks.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

impl Ledger {
    /// Replaces the program of this process by another one, which answers the client with this number. Returns only if that fails.
    pub(super) fn upgrade(&self, client: u64, mut descriptors: Vec<OwnedFd>) -> Refusal {
        let Some(program) = descriptors.pop().filter(|_| descriptors.is_empty()) else {
            return (RefusalKind::Usage, "the request needs the descriptor of a program".to_owned());
        };
        if let Err(reason) = check_program(&program) {
            return (RefusalKind::Usage, format!("the program cannot be executed: {reason}"));
        }
        if !self.upgrade.begin() {
            return (RefusalKind::Failed, "an upgrade is in progress: try again".to_owned());
        }
        let reason = match self.check_elsewhere(&program) {
            Err(error) => error.to_string(),
            Ok(()) => self.wait_for_execution(client, program),
        };
        self.upgrade.end();
        (RefusalKind::Failed, format!("{reason}; the service goes on as before"))
    }

    /// Has the new program check that it can continue the service: it understands the file, and can confine a domain.
    fn check_elsewhere(&self, program: &OwnedFd) -> io::Result<()> {
        // It gets the numbers alone.
        let state = || {
            let sockets = (PassedSocket { listener: -1, name: None }, None);
            Succession::of(self, sockets, Vec::new(), &mut |descriptor| Ok(descriptor.as_raw_fd()))
        };
        let until = Instant::now() + QUIET_TIME_MAX;
        let file = loop {
            match state() {
                Ok(state) => break state.seal()?,
                // A mount is being made or continued.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match Instant::now() < until {
                    true => thread::sleep(GLANCE),
                    false => return Err(busy()),
                },
                Err(error) => return Err(error),
            }
        };
        let mut command = command_of(program);
        command.env(STATE_VARIABLE, CHECK).stdin(Stdio::from(OwnedFd::from(file)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(start_error)?;
        drop(command);
        let (sender, outputs) = mpsc::channel();
        let streams: [(bool, Option<Box<dyn Read + Send>>); 2] = [
            (true, child.stdout.take().map(|stream| Box::new(stream) as Box<_>)),
            (false, child.stderr.take().map(|stream| Box::new(stream) as Box<_>)),
        ];
        for (is_output, stream) in streams {
            let (Some(stream), sender) = (stream, sender.clone()) else { continue };
            let work = move || {
                let mut text = Vec::new();
                let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
                let _ = sender.send((is_output, String::from_utf8_lossy(&text).into_owned()));
            };
            thread::Builder::new().name("floe-upgrade".to_owned()).spawn(work).map_err(start_error)?;
        }
        drop(sender);
        let until = Instant::now() + CHECK_TIME_MAX;
        let (mut output, mut errors, mut is_late) = (String::new(), String::new(), false);
        loop {
            match outputs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((true, text)) => output = text,
                Ok((false, text)) => errors = text,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    is_late = true;
                    break;
                }
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        match last_message(&errors) {
            _ if output.trim_end() == CHECKED => Ok(()),
            _ if is_late => Err(io::Error::other("the program does not say that it can continue the service")),
            Some(message) => Err(io::Error::other(format!("the program cannot continue the service: {message}"))),
            None => Err(io::Error::other("the program is not a version of Floe that can continue the service")),
        }
    }

    /// Waits until the broker's thread executes the program. Returns the reason if it does not.
    fn wait_for_execution(&self, client: u64, program: OwnedFd) -> String {
        let (failed, failure) = mpsc::channel();
        self.upgrade.hold(Pending { program, client, failed });
        let until = Instant::now() + QUIET_TIME_MAX;
        let reason = loop {
            self.upgrade.wake();
            match failure.recv_timeout(GLANCE) {
                Ok(reason) => break reason,
                Err(_) if Instant::now() < until => {}
                // The broker's thread may be about to execute it, with what this thread has taken.
                Err(_) => match self.upgrade.take_pending() {
                    Some(_) => break busy().to_string(),
                    None => break failure.recv().unwrap_or_default(),
                },
            }
        };
        self.upgrade.stop_holding();
        reason
    }

    /// Executes the program that waits for it, if nothing is in progress but the request for it. On the broker's thread: no message of
    /// a domain is lost. `succession` is what is left to it; it gets the number of the client.
    pub(super) fn try_to_execute(
        &self,
        requests: usize,
        mut succession: impl FnMut(u64, &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<i32>) -> io::Result<Succession>,
    ) {
        let _ = read(self.upgrade.event(), &mut [0; 8]);
        let is_quiet = requests <= 1
            && self.upgrade.has_no_activity()
            && !self.is_stopping.load(Relaxed)
            && self.state.lock().mounts.values().all(|kept| matches!(kept.stage, Stage::Served) && kept.heir.is_none());
        let readaheads = self.fronts.existing();
        // A thread that waits for a source would delay the end of the earlier program.
        let paused = readaheads.as_ref().map(|readaheads| readaheads.try_pause());
        if !is_quiet || matches!(paused, Some(None)) {
            return;
        }
        let Some(Pending { program, client, failed }) = self.upgrade.take_pending() else { return };
        let leave_open = |is_left: bool| {
            let flags = if is_left { FdFlags::empty() } else { FdFlags::CLOEXEC };
            move |descriptor: BorrowedFd<'_>| {
                fcntl_setfd(descriptor, flags)?;
                Ok(descriptor.as_raw_fd())
            }
        };
        let executed = succession(client, &mut leave_open(true)).and_then(|succession| {
            let file: OwnedFd = succession.seal()?.into();
            fcntl_setfd(&file, FdFlags::empty())?;
            Ok(command_of(&program).env(STATE_VARIABLE, file.as_raw_fd().to_string()).exec())
        });
        // This program goes on.
        let _ = succession(client, &mut leave_open(false));
        let error = executed.unwrap_or_else(|error| error);
        let _ = failed.send(format!("the program cannot be executed: {}", start_error(error)));
    }
}

/// Checks, in the program that may replace another one, that it could continue the service whose file is the standard input. `options`
/// are those of the service. Returns what it is to print.
///
/// # Errors
/// It could not.
pub fn check_continuation(input: OwnedFd, options: &str) -> Result<&'static str, Failure> {
    let failed = |error: io::Error| Failure::failed(error.to_string());
    let succession = Succession::read(input).map_err(failed)?;
    settings_of_service(options)?;
    for mount in &succession.mounts {
        settings_of_request(&mount.request())?;
    }
    let domain = DomainProcess::start(options, None, None, false)?;
    domain.kill();
    domain.wait_for_end();
    Ok(CHECKED)
}

/// Whether this process is to [check](check_continuation) whether it could continue a service.
pub fn is_to_check() -> bool {
    env::var_os(STATE_VARIABLE).is_some_and(|value| value == CHECK)
}

/// The command that runs a program with the arguments of this process.
fn command_of(program: &OwnedFd) -> Command {
    let mut arguments = env::args_os();
    let mut command = Command::new(path_of(program));
    command.arg0(arguments.next().unwrap_or_else(|| "floe".into())).args(arguments);
    for variable in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    command
}

fn path_of(program: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", program.as_raw_fd()).into()
}

fn check_program(program: &OwnedFd) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(program)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(accessat(CWD, path_of(program), Access::EXEC_OK, AtFlags::EACCESS)?)
}

fn busy() -> io::Error {
    io::Error::other("mounts are being made or continued: try again")
}
