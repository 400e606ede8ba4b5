//! The connection to the kernel, used besides the session threads: shows pending requests, and refuses them while all session
//! threads are stuck.

pub(crate) mod rings;

use std::sync::OnceLock;

use floe_fuse_wire::{Channel, Errno, Receipt, RequestBuffer};
use rustix::event::PollFlags;

/// The largest write that the kernel may send, in bytes. The mount is read-only, so none ever comes.
pub(crate) const WRITE_BYTES_MAX: u32 = 4096;

/// The largest read that the kernel may send, in bytes.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;

/// The size of request buffers in bytes: room for a `BATCH_FORGET` of thousands of nodes.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;

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

/// A channel of its own to the kernel, on which requests are refused while all session threads are stuck in the source.
pub(crate) struct Rescue {
    channel: Channel,
}

impl Rescue {
    /// Creates a rescue over a channel that does not block.
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Whether the file system was unmounted or the connection aborted.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.events().contains(PollFlags::ERR)
    }

    /// Replies `EIO` to all requests that no session thread has taken.
    pub(crate) fn refuse_pending(&self) {
        if self.events().contains(PollFlags::IN) {
            let mut buffer = RequestBuffer::new(REQUEST_BYTES_MAX);
            // Dropping a request replies `EIO`.
            while let Ok(Receipt::Request(_)) = self.channel.receive(&mut buffer) {}
        }
    }

    /// The poll events of the channel, without waiting.
    fn events(&self) -> PollFlags {
        self.channel.events().unwrap_or(PollFlags::empty())
    }
}
