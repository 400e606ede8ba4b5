//! A look at the connection to the kernel, from beside the session.

use std::{os::fd::OwnedFd, sync::OnceLock};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::REQUEST_BYTES_MAX;

/// Shows whether requests wait for a session thread, and whether the connection has ended.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    device: OnceLock<OwnedFd>,
}

/// How the kernel has ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEnd {
    /// The mount is gone.
    Unmounted,
    /// It was aborted: a dead mount is left.
    Aborted,
}

impl Pending {
    /// Names the descriptor that shows it. Only the first counts.
    pub(crate) fn look_at(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Whether a read of the device would not wait, be it for the end of the connection; `None` before there is one.
    pub(crate) fn is_there(&self) -> Option<bool> {
        Some(!self.events()?.is_empty())
    }

    /// How the connection has ended, if it has. The kernel ends it before it gives its device number to another mount, so
    /// that this tells a successor apart.
    pub(crate) fn connection_end(&self) -> Option<ConnectionEnd> {
        if !self.events()?.contains(PollFlags::ERR) {
            return None;
        }
        // The connection has ended, so no request is taken here. The kernel looks at the room before it does at that.
        let mut room = vec![0; REQUEST_BYTES_MAX];
        match rustix::io::read(self.device.get()?, &mut room[..]) {
            Err(Errno::CONNABORTED) => Some(ConnectionEnd::Aborted),
            _ => Some(ConnectionEnd::Unmounted),
        }
    }

    /// What could be done now without waiting.
    fn events(&self) -> Option<PollFlags> {
        let mut descriptors = [PollFd::new(self.device.get()?, PollFlags::IN)];
        match poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Some(PollFlags::empty()),
            Ok(_) => Some(descriptors[0].revents()),
            // That something waits is the safe answer.
            Err(_) => Some(PollFlags::IN),
        }
    }
}
