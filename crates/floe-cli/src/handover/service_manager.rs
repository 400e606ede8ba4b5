//! Messages to the service manager (sd_notify(3)), which keeps descriptors for a restart.

use std::{
    env,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    os::linux::net::SocketAddrExt,
    os::unix::{
        ffi::OsStrExt,
        net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use floe_fuse::Relay;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::fail::Fail;

/// The environment variable with the address of the service manager's socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The names of the descriptors in the store.
pub(super) const DEVICE: &str = "floe-device";
pub(super) const AUTO_UNMOUNT: &str = "floe-auto-unmount";
pub(super) const STATE: &str = "floe-state";

/// How long the service manager may take to accept a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// A service manager that waits for messages of this process.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: OwnedFd,
}

impl ServiceManager {
    /// Connects to the service manager, if there is one. A confined process can no longer do this.
    pub(crate) fn connect() -> Option<Self> {
        let name = env::var_os(VARIABLE).filter(|name| !name.is_empty())?;
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect_addr(&address.ok()?).ok()?;
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Self { socket: socket.into() })
    }

    /// Lets the keeper send the messages. Returns the relay for it.
    ///
    /// # Errors
    /// There are no descriptors left for it. A confined process must not be left with the datagram socket, which reaches any
    /// other socket.
    pub(crate) fn relay(&mut self) -> Result<Relay, Fail> {
        let failed = |error: io::Error| {
            Fail::failed(format!(
                "cannot pass the service manager's socket to the mounting process: {error}: raise the limit (ulimit -n), or \
                 unset {VARIABLE}"
            ))
        };
        let copy = self.socket.try_clone().map_err(failed)?;
        let (socket, relay) = Relay::new(copy).map_err(|error| failed(error.into()))?;
        self.socket = socket;
        Ok(relay)
    }

    /// Whether a service manager waits for messages of this process.
    pub(crate) fn is_present() -> bool {
        env::var_os(VARIABLE).is_some_and(|name| !name.is_empty())
    }

    /// Reports that the mount works, and that this process is the service's main process.
    pub(crate) fn ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}", std::process::id()), &[]);
    }

    /// Stores descriptors for the process that continues the mount after a crash of this one.
    pub(super) fn store(&self, name: &str, descriptors: &[BorrowedFd<'_>]) {
        for descriptor in descriptors {
            self.send(&format!("FDSTORE=1\nFDNAME={name}"), &[*descriptor]);
        }
    }

    /// Removes everything from the store.
    pub(crate) fn forget(&self) {
        for name in [DEVICE, AUTO_UNMOUNT, STATE] {
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]);
        }
    }

    /// Sends a message. Errors are ignored.
    fn send(&self, message: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let message = [IoSlice::new(message.as_bytes())];
        let _ = rustix::io::retry_on_intr(|| sendmsg(&self.socket, &message, &mut control, SendFlags::NOSIGNAL));
    }
}
