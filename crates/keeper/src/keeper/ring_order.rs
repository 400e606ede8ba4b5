//! The permission of rings for a process that serves a kept mount.

use std::{
    io::pipe,
    os::fd::{AsFd, OwnedFd},
};

use floe_ipc::send;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::SendFlags,
};

use crate::{messages::Answer, ring_permission::RingPermission};

/// How long a process may need to set up its connection.
const TIME_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The order to permit rings, by the process that serves a kept mount.
#[derive(Debug)]
pub struct RingOrder {
    /// For the answer.
    socket: OwnedFd,
}

impl RingOrder {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Permits rings until the process closes the descriptor that it gets, for 30 s at most. If they cannot be permitted, the process
    /// is told so.
    pub fn carry_out(self) {
        let Some((permission, (held, given))) = RingPermission::give().zip(pipe().ok()) else {
            return self.answer(&Answer::refused(libc::EPERM), None);
        };
        self.answer(&Answer::Done, Some(given.into()));
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&held, PollFlags::empty())], Some(&TIME_MAX)));
        drop(permission);
    }

    /// Answers. A process that does not read its answers does not stop the service.
    fn answer(&self, answer: &Answer, permission: Option<OwnedFd>) {
        let descriptor = permission.as_ref().map(AsFd::as_fd);
        let _ = send(&self.socket, answer, descriptor.as_slice(), SendFlags::DONTWAIT);
    }
}
