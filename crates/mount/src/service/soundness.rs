//! Checks the kept metadata of a front in a process of its own, before the kernel mounts it for a user.
//!
//! What a domain has rendered is the work of a process that decodes images with C libraries. The checking process decodes nothing,
//! is confined, and sees this one file.

use std::{
    fs::File,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use floe_front::{Algorithms, KeptImage, KernelRights, UserRules, check_soundness};
use floe_image::start_error;
use floe_ipc::{Encoded, encoded, receive, send};
use floe_sandbox::{Mode, Policy, Sandbox};
use rustix::{
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::{Resource, Rlimit, setpriority_process, setrlimit},
};

use crate::{failure::Failure, kept_front::NICE_MAX};

/// The hidden command of the program `floe` that checks kept metadata for the process at the other end of the standard input.
pub const CHECK_COMMAND: &str = "check-for-another";

/// How long a check may take. The largest file takes some seconds.
const CHECK_TIME_MAX: Duration = Duration::from_secs(60);

/// The memory that a check may take. The largest file takes less than half of it.
const MEMORY_BYTES_MAX: u64 = 2 << 30;

/// The maximum length of a verdict in bytes.
const VERDICT_BYTES_MAX: usize = 1000;

encoded! {
    /// The request to check a file, which is beside the message.
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Question {
        original_len: Option<u64>,
        algorithms: u32,
        rules: Option<Rules>,
    }
}

encoded! {
    /// [`UserRules`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Rules {
        only_user: Option<u32>,
        permits_devices: bool,
    }
}

encoded! {
    /// What the check has found.
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Verdict {
        /// The reason why the kernel may not mount the file; `None` if it may.
        fault: Option<String>,
    }
}

/// Has a new, confined process of `program` check whether the kernel may mount kept metadata with these rights, and with these rules if
/// it is for a user. No other process may be able to change the file.
///
/// # Errors
/// It may not ([`io::ErrorKind::InvalidData`]), or no process can check it; the error is one line.
pub fn check_elsewhere(
    program: &Path,
    metadata: BorrowedFd<'_>,
    rights: KernelRights,
    rules: Option<UserRules>,
) -> io::Result<()> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&ours, timeout, Some(CHECK_TIME_MAX))?;
    }
    let mut command = Command::new(program);
    command.arg0("floe").arg(CHECK_COMMAND).current_dir("/").env_clear();
    let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // It has the other end alone.
    drop(command);
    let mut child = child.map_err(start_error)?;
    let rules = rules.map(|UserRules { only_user, permits_devices }| Rules { only_user, permits_devices });
    let (original_len, algorithms) = (rights.original_len, rights.algorithms.to_number().into());
    let question = Question { original_len, algorithms, rules };
    let asked = send(&ours, &question, &[metadata], SendFlags::empty()).map_err(io::Error::from);
    let verdict = asked.and_then(|()| receive::<Verdict>(&ours, RecvFlags::empty()));
    let _ = child.kill();
    let _ = child.wait();
    match verdict? {
        Some((Verdict { fault: None }, _)) => Ok(()),
        Some((Verdict { fault: Some(fault) }, _)) => Err(io::Error::new(io::ErrorKind::InvalidData, fault)),
        None => Err(io::Error::other("the process that checks it has failed")),
    }
}

/// Checks kept metadata for the process at the other end of a socket. This process must have no other threads.
///
/// # Errors
/// It breaks the protocol, or this process cannot be confined.
pub fn check_for_broker(socket: OwnedFd) -> Result<(), Failure> {
    let lost = |error: io::Error| Failure::failed(format!("lost the service: {error}"));
    let received = receive::<Question>(&socket, RecvFlags::empty()).map_err(lost)?;
    let parts = received.and_then(|(question, files)| Some((question, files.into_iter().next()?)));
    let Some((question, metadata)) = parts else { return Err(Failure::failed("the service breaks the protocol")) };
    // Other work comes first.
    let _ = setpriority_process(None, NICE_MAX);
    setrlimit(Resource::Data, Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) })
        .map_err(|error| lost(error.into()))?;
    let (sandbox, ()) = Sandbox::enter(Policy::default(), Mode::Require, || ())?;
    sandbox.seal()?;
    let rights = KernelRights {
        original_len: question.original_len,
        algorithms: Algorithms::from_number(question.algorithms as u16),
    };
    let kept = KeptImage::verified_elsewhere(File::from(metadata)).map_err(|error| error.to_string());
    let rules = question.rules;
    let rules = rules.map(|Rules { only_user, permits_devices }| UserRules { only_user, permits_devices });
    let checked = kept.and_then(|kept| check_soundness(&kept, rights, rules).map_err(|error| error.to_string()));
    let is_shown = |character: &char| !character.is_control();
    let fault = checked.err().map(|fault| fault.chars().filter(is_shown).take(VERDICT_BYTES_MAX / 4).collect());
    // A confined process may write, but not send descriptors.
    let written = rustix::io::write(&socket, &Verdict { fault }.to_bytes());
    written.map(drop).map_err(|error| lost(error.into()))
}
