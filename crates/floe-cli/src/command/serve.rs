//! `floe serve`: the service, which mounts many images.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process,
    sync::Arc,
    thread,
};

use floe_image::{ShownName, start_error};
use floe_ipc::{USERS_SOCKET, socket_path};
use floe_mount::{
    Remarks,
    handover::ServiceManager,
    service::{
        Broker, Continued, ServiceSocket, Stopper, UserLimits, check_continuation, check_for_broker, is_to_check,
        serve_for_broker,
    },
};
use floe_sandbox::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    cancellation::unless_ignored,
    confinement::SandboxArguments,
    fail::{Exit, Fail},
    output::{Output, remark},
};

/// Run the service, which mounts many images with one engine
///
/// Clients are floe mount --service, mounts with -o service=on or service=auto, and programs that use the library. The service
/// mounts for the user who runs it; with --users, root's mounts for all users, as fusermount3 does. The images are read by a confined process, which is replaced if it dies.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The socket to listen on, unless a service manager passes one [/run/floe/service for root, $XDG_RUNTIME_DIR/floe/service for
    /// others; or FLOE_SERVICE]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve other users, too, within limits: mounts=COUNT of each (100), memory=SIZE (1G) and cpu=PERCENT of each process that reads
    /// a user's images; real-time permits these processes real-time threads; fronts=SIZE permits the kernel's EROFS in front, with this
    /// disk space for metadata of each user (256M). Without it, a socket with the name users that a service
    /// manager passes does so
    #[arg(long, value_name = "LIMITS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    users: Option<String>,
    /// The socket for other users, unless a service manager passes one [/run/floe-users/service]
    #[arg(long, value_name = "PATH", requires = "users")]
    users_socket: Option<PathBuf>,
    /// Options that all mounts share: memory and threads, as for floe mount
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    #[command(flatten)]
    sandbox: SandboxArguments,
}

const HELP: &str = "\
SIGINT, SIGTERM and SIGHUP unmount all that is not in use, and end the service. Mounts in use are served until they are unmounted. A
second signal ends the service at once, and leaves all mounts as they are.

Examples:
  floe serve
  floe serve --users=mounts=20,memory=512M,fronts
  floe mount --service app.erofs /opt/app
  systemctl enable --now floe.socket

Exit codes:
  0  all mounts are unmounted
  1  a mount is still in use, or the service could not be started
  2  wrong usage";

/// Runs the command.
///
/// # Errors
/// Another service listens, or the socket cannot be created.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let mut options = arguments.options.clone();
    match arguments.sandbox.mode() {
        Mode::Auto => {}
        Mode::Require => options.push("sandbox=require".to_owned()),
        Mode::Off => options.push("sandbox=off".to_owned()),
    }
    let options = options.join(",");
    if is_to_check() {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|error| Fail::failed(format!("there is no standard input: {error}")))?;
        return Output::print(format_args!("{}\n", check_continuation(input, &options)?));
    }
    raise_descriptor_limit();
    let path = arguments.socket.clone().unwrap_or_else(socket_path);
    let limits = arguments.users.as_deref().map(UserLimits::parse).transpose()?;
    let remarks: Remarks = Arc::new(|message| say!("floe: {message}"));
    let (broker, is_continued) = match Continued::find()? {
        Some(continued) => {
            let limits = limits.or(if continued.has_users() { Some(UserLimits::parse("")?) } else { None });
            (Broker::continued(continued, limits, &options, remarks)?, true)
        }
        None => {
            let users_path = arguments.users_socket.clone().unwrap_or_else(|| USERS_SOCKET.into());
            let (socket, users_socket) = ServiceSocket::open(&path, limits.is_some().then_some(&*users_path))?;
            let users = match (users_socket, limits) {
                (Some(socket), Some(limits)) => Some((socket, limits)),
                (Some(socket), None) => Some((socket, UserLimits::parse("")?)),
                (None, _) => None,
            };
            (Broker::new(socket, users, &options, remarks)?, false)
        }
    };
    let signals = Signals::new(unless_ignored(&[SIGINT, SIGTERM, SIGHUP]));
    let signals = signals.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))?;
    start_signal_thread(signals, broker.stopper())
        .map_err(|error| Fail::failed(format!("cannot start a thread: {error}")))?;
    if let Some(manager) = ServiceManager::connect() {
        manager.ready();
    }
    if !is_continued {
        remark(format_args!("serving mounts at {}\n", path.shown()));
    }
    let left = broker.run()?;
    for message in &left {
        say!("floe: {message}");
    }
    Ok(if left.is_empty() { Exit::Done.code() } else { Exit::Failed.code() })
}

/// Runs the process that reads images for the service at the other end of standard input.
///
/// # Errors
/// It cannot be confined, or the service breaks the protocol.
pub(crate) fn run_domain() -> Result<u8, Fail> {
    serve_for_broker(socket_of_broker()?)?;
    // Returning from `main` would not end threads that wait for a source.
    process::exit(Exit::Done.code().into())
}

/// Runs the process that checks the metadata of a front for the service at the other end of standard input.
///
/// # Errors
/// It cannot be confined, or the service breaks the protocol.
pub(crate) fn run_check() -> Result<u8, Fail> {
    check_for_broker(socket_of_broker()?)?;
    Ok(Exit::Done.code())
}

fn socket_of_broker() -> Result<OwnedFd, Fail> {
    let socket = io::stdin().as_fd().try_clone_to_owned();
    socket.map_err(|error| Fail::failed(format!("this command is internal to floe: {error}")))
}

/// Stops the broker on the first signal, and ends the process on the second.
fn start_signal_thread(mut signals: Signals, stopper: Stopper) -> io::Result<()> {
    let work = move || {
        let mut arrived = signals.forever();
        if arrived.next().is_some() {
            stopper.stop();
        }
        if arrived.next().is_some() {
            say!("floe: stopped at once: the mounts stay, and are served until they are unmounted");
            process::exit(Exit::Failed.code().into());
        }
    };
    thread::Builder::new().name("floe-signals".to_owned()).spawn(work).map(drop).map_err(start_error)
}

/// Permits as many open files as root allows: each mount has several.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With the old limit, there is room for fewer mounts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
