//! The process of a domain, as the broker sees it.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use floe_image::start_error;
use floe_ipc::{receive, receive_alone, send};
use floe_keeper::{peer_process, user_of_process};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, geteuid, pidfd_open, pidfd_send_signal, waitid},
};
use serde::{Deserialize, Serialize};

use super::{
    DOMAIN_COMMAND,
    control_group::ControlGroup,
    messages::{Order, Report, version},
    users::{DomainUser, UserLimits},
};
use crate::{daemon::own_program, failure::Failure};

/// The environment variable with the number of the descriptor of the file that an earlier program of the broker has left; or `check`.
pub(super) const STATE_VARIABLE: &str = "FLOE_CONTINUES";

/// `PIDFD_THREAD` of Linux 6.9: the descriptor tells the end of the main thread. Other threads of a killed process may wait for
/// replies that only the next process gives.
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);

/// How long a domain may take to confine itself and to start its threads.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it may take to receive a message.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);

/// How long the threads of a killed domain may take to end. Those that have not ended by then wait in the kernel, and take no more
/// requests.
const END_TIME_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// A process of a domain for the next program of the broker, with its descriptors or their numbers.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedProcess<Descriptor> {
    pub(super) socket: Descriptor,
    pub(super) process: Descriptor,
    pub(super) main_thread: Descriptor,
    pub(super) id: u32,
    pub(super) version: u32,
    /// The directory of its control group.
    pub(super) group: Option<PathBuf>,
}

/// The process of a domain.
#[derive(Debug)]
pub(super) struct DomainProcess {
    socket: OwnedFd,
    /// Tells the end of the process.
    process: OwnedFd,
    /// Tells the end of its main thread.
    main_thread: OwnedFd,
    pub(super) id: u32,
    pub(super) started: Instant,
    /// The version of its messages. One of another version gets no orders.
    pub(super) version: u32,
    /// The control group of a process of another user, where the service manager permits one.
    group: Option<ControlGroup>,
}

impl DomainProcess {
    /// Starts a domain with the options of the service, and waits until it is confined: as another user if there is one. It waits for
    /// the next broker at `listener`, a bound socket. With `has_rings`, it serves one mount, over io_uring.
    ///
    /// # Errors
    /// The process cannot be started, or fails; it has then said why.
    pub(super) fn start(
        options: &str,
        user: Option<(DomainUser, &UserLimits)>,
        listener: Option<BorrowedFd<'_>>,
        has_rings: bool,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot start the process that reads images: {}", start_error(error)))
        };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
        let mut program = Command::new(own_program());
        // The program name selects drop-in programs, so it must be `floe`. It outlives this process, so it leaves its directory.
        program.arg0("floe").arg(DOMAIN_COMMAND).current_dir("/");
        for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", STATE_VARIABLE] {
            program.env_remove(variable);
        }
        let child = program.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn().map_err(failed)?;
        drop(program);
        let mut domain = Self::of(ours, Pid::from_child(&child)).map_err(failed)?;
        domain.group = user.and_then(|(_, limits)| limits.confine(domain.id));
        let order = Order::Begin { options: options.to_owned(), user: user.map(|(user, _)| user), has_rings };
        match domain.begin(&order, listener) {
            Ok(()) => Ok(domain),
            Err(error) => {
                domain.kill();
                domain.wait_for_end();
                Err(failed(error))
            }
        }
    }

    fn of(socket: OwnedFd, pid: Pid) -> io::Result<Self> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let main_thread = match pidfd_open(pid, OF_THREAD) {
            Err(Errno::INVAL) => process.try_clone()?,
            opened => opened?,
        };
        let id = pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Self { socket, process, main_thread, id, started: Instant::now(), version: version(), group: None })
    }

    /// The process with these numbers, of an earlier program of this process.
    pub(super) fn passed(passed: PassedProcess<OwnedFd>) -> Self {
        let PassedProcess { socket, process, main_thread, id, version, group } = passed;
        let group = group.map(ControlGroup::of);
        Self { socket, process, main_thread, id, started: Instant::now(), version, group }
    }

    /// Passes its descriptors to `pass`. Returns the process with the results.
    ///
    /// # Errors
    /// Those of `pass`.
    pub(super) fn pass<Passed>(
        &self,
        mut pass: impl FnMut(BorrowedFd<'_>) -> io::Result<Passed>,
    ) -> io::Result<PassedProcess<Passed>> {
        Ok(PassedProcess {
            socket: pass(self.socket.as_fd())?,
            process: pass(self.process.as_fd())?,
            main_thread: pass(self.main_thread.as_fd())?,
            id: self.id,
            version: self.version,
            group: self.group.as_ref().map(|group| group.directory().to_owned()),
        })
    }

    /// Takes over its control group, if it has one.
    pub(super) fn take_group(&mut self, limits: &UserLimits) {
        self.group = limits.group_of(self.id);
    }

    /// Whether it takes the orders of this program.
    pub(super) fn is_of_this_version(&self) -> bool {
        self.version == version()
    }

    /// The process at the other end of a connection to a socket of a domain.
    ///
    /// # Errors
    /// Another user has begun to listen there, or it has ended.
    pub(super) fn connected(socket: OwnedFd) -> io::Result<Self> {
        // The domain listens itself, before it becomes the process of another user, so the kernel names it.
        let peer = socket_peercred(&socket)?;
        if peer.uid != geteuid() {
            return Err(io::Error::other(format!("it belongs to user {}", peer.uid.as_raw())));
        }
        let process = match peer_process(socket.as_fd()) {
            // Before Linux 6.5, no other users are served, so nobody else has its end of the connection.
            Err(error) if error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => None,
            Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            Ok(process) => Some(process),
        };
        let mut domain = Self::of(socket, peer.pid)?;
        domain.process = process.unwrap_or(domain.process);
        // While the process has not ended, its number was not given to another one.
        let mut ended = [PollFd::new(&domain.socket, PollFlags::empty()), PollFd::new(&domain.process, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut ended, Some(&Timespec::default())))? {
            0 => Ok(domain),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The user as whom it runs; `None` if it has ended.
    pub(super) fn user(&self) -> Option<u32> {
        let user = user_of_process(self.id);
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut ended, Some(&Timespec::default()))) {
            Ok(0) => user,
            _ => None,
        }
    }

    fn begin(&self, order: &Order, listener: Option<BorrowedFd<'_>>) -> io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Send, Some(SEND_TIME_MAX))?;
        set_socket_timeout(&self.socket, Timeout::Recv, Some(START_TIME_MAX))?;
        self.tell(order, listener.as_slice())?;
        match receive(&self.socket, RecvFlags::empty())? {
            Some((Report::Ready, _)) => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The next message with its descriptors, for which it waits as long as the connection permits.
    ///
    /// # Errors
    /// The domain has ended, does not answer, or breaks the protocol.
    pub(super) fn next_report(&self) -> io::Result<(Report, Vec<OwnedFd>)> {
        receive(&self.socket, RecvFlags::empty())?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The domain has ended, or does not take messages.
    pub(super) fn tell(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.check_version(order)?;
        Ok(send(&self.socket, order, descriptors, SendFlags::empty())?)
    }

    /// Sends a message to a domain that may not take it in time: it does not wait.
    ///
    /// # Errors
    /// The domain has ended, or has no room for messages.
    pub(super) fn tell_at_once(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.check_version(order)?;
        Ok(send(&self.socket, order, descriptors, SendFlags::DONTWAIT)?)
    }

    fn check_version(&self, order: &Order) -> io::Result<()> {
        match order {
            Order::Adopt { .. } => Ok(()),
            _ if self.is_of_this_version() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "it is another version of Floe")),
        }
    }

    /// The next message, without waiting. Returns `None` if there is none now.
    ///
    /// # Errors
    /// The domain has ended, or breaks the protocol.
    pub(super) fn report(&self) -> io::Result<Option<Report>> {
        match receive_alone(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some(report)) => Ok(Some(report)),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The socket that is readable when there is a message.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The descriptor that is readable when the process has ended, apart from threads that wait in the kernel.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.main_thread.as_fd()
    }

    /// Kills it.
    pub(super) fn kill(&self) {
        // It may have ended.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Waits, for a limited time, until its threads have ended, and removes the process from the table. Returns whether it was
    /// killed from outside: by SIGKILL, which no image can cause.
    pub(super) fn wait_for_end(&self) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let _ = retry_on_intr(|| poll(&mut ended, Some(&END_TIME_MAX)));
        match waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => status.terminating_signal() == Some(Signal::KILL.as_raw()),
            // Threads of a process that ends by itself do not wait this long. Of the child of an earlier broker, nothing is known.
            Ok(None) | Err(_) => true,
        }
    }
}
