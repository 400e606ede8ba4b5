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

use floe_keeper::Relay;
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Pid,
};

use crate::failure::Failure;

/// The environment variable with the address of the service manager's socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The names of the descriptors in the store.
pub(super) const DEVICE: &str = "floe-device";
pub(super) const AUTO_UNMOUNT: &str = "floe-auto-unmount";
pub(super) const STATE: &str = "floe-state";
const NAMES: [&str; 3] = [DEVICE, AUTO_UNMOUNT, STATE];

/// How long the service manager may take to accept a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// A service manager that waits for messages of this process.
#[derive(Debug)]
pub struct ServiceManager {
    socket: OwnedFd,
}

impl ServiceManager {
    /// Connects to the service manager, if there is one. A confined process can no longer do this.
    pub fn connect() -> Option<Self> {
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
    pub fn relay(&mut self) -> Result<Relay, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!(
                "cannot pass the service manager's socket to the mounting process: {error}: raise the limit (ulimit -n), or \
                 unset {VARIABLE}"
            ))
        };
        let copy = self.socket.try_clone().map_err(failed)?;
        let (socket, relay) = Relay::new(copy, permits).map_err(|error| failed(error.into()))?;
        self.socket = socket;
        Ok(relay)
    }

    /// Whether a service manager waits for messages of this process.
    pub fn is_present() -> bool {
        env::var_os(VARIABLE).is_some_and(|name| !name.is_empty())
    }

    /// Reports that the mount works, and that this process is the service's main process.
    pub fn ready(&self) {
        self.send(&ready_message(std::process::id()), &[]);
    }

    /// Stores descriptors for the process that continues the mount after a crash of this one.
    pub(super) fn store(&self, name: &str, descriptors: &[BorrowedFd<'_>]) {
        for descriptor in descriptors {
            self.send(&store_message(name), &[*descriptor]);
        }
    }

    /// Removes everything from the store.
    pub fn forget(&self) {
        for name in NAMES {
            self.send(&removal_message(name), &[]);
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

fn ready_message(process: u32) -> String {
    format!("READY=1\nMAINPID={process}")
}

fn store_message(name: &str) -> String {
    format!("FDSTORE=1\nFDNAME={name}")
}

fn removal_message(name: &str) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={name}")
}

/// Whether a confined process may send this message: one of those above about itself. A service manager obeys root, so other
/// messages could make it signal any process.
fn permits(message: &[u8], descriptors: usize, sender: Pid) -> bool {
    let is = |text: String| text.as_bytes() == message;
    match descriptors {
        0 => {
            is(ready_message(sender.as_raw_pid().unsigned_abs())) || NAMES.iter().any(|name| is(removal_message(name)))
        }
        1 => NAMES.iter().any(|name| is(store_message(name))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_process_sends_only_messages_about_itself() {
        let sender = Pid::from_raw(4242).expect("a number");
        for (message, descriptors, expected) in [
            ("READY=1\nMAINPID=4242", 0, true),
            ("READY=1\nMAINPID=1", 0, false),
            ("READY=1\nMAINPID=4242", 1, false),
            ("READY=1\nMAINPID=4242\nWATCHDOG=trigger", 0, false),
            ("FDSTORE=1\nFDNAME=floe-state", 1, true),
            ("FDSTORE=1\nFDNAME=floe-state", 0, false),
            ("FDSTORE=1\nFDNAME=other", 1, false),
            ("FDSTOREREMOVE=1\nFDNAME=floe-device", 0, true),
            ("NOTIFYACCESS=all", 0, false),
        ] {
            assert_eq!(permits(message.as_bytes(), descriptors, sender), expected, "{message} {descriptors}");
        }
    }
}
