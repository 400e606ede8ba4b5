//! A look at the connection to the kernel, from beside the session.

use std::sync::OnceLock;

use floe_fuse_wire::{Channel, Errno, RequestBuffer};
use rustix::event::PollFlags;

use super::REQUEST_BYTES_MAX;

/// Shows whether requests wait for a session thread, and whether the connection has ended.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    channel: OnceLock<Channel>,
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
    /// Names the channel that shows it, which never waits. Only the first counts.
    pub(crate) fn look_at(&self, channel: Channel) {
        let _ = self.channel.set(channel);
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
        // The connection has ended, so no request is taken here.
        match self.channel.get()?.receive(&mut RequestBuffer::new(REQUEST_BYTES_MAX)) {
            Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => {
                Some(ConnectionEnd::Aborted)
            }
            _ => Some(ConnectionEnd::Unmounted),
        }
    }

    /// What could be done now without waiting.
    fn events(&self) -> Option<PollFlags> {
        // That something waits is the safe answer.
        Some(self.channel.get()?.events().unwrap_or(PollFlags::IN))
    }
}
