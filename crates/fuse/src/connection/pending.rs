//! Observes the connection to the kernel without taking requests.

use std::sync::OnceLock;

use floe_fuse_wire::{Channel, Errno, RequestBuffer};
use rustix::event::PollFlags;

use super::REQUEST_BYTES_MAX;

/// Shows whether requests wait for a session thread, and whether the connection has ended.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    channel: OnceLock<Channel>,
}

/// How the kernel ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEnd {
    /// The mount is gone.
    Unmounted,
    /// The connection was aborted; the mount remains without a server.
    Aborted,
}

impl Pending {
    /// Sets the channel to observe, which must not block. Only the first call counts.
    pub(crate) fn look_at(&self, channel: Channel) {
        let _ = self.channel.set(channel);
    }

    /// Whether a read of the device would return at once: because of a request, or because the connection has ended.
    /// `None` before [`look_at`](Self::look_at).
    pub(crate) fn is_readable(&self) -> Option<bool> {
        Some(!self.events()?.is_empty())
    }

    /// How the connection ended, or `None` while it is alive. The kernel ends a connection before it reuses the device
    /// number, so this distinguishes a mount from its successor.
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

    /// The poll events of the channel, without waiting.
    fn events(&self) -> Option<PollFlags> {
        // If polling fails, "readable" is the safe answer: the caller reads the device and gets the error.
        Some(self.channel.get()?.events().unwrap_or(PollFlags::IN))
    }
}
