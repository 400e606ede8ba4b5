//! The connection to the kernel, used besides the session threads: shows how it ended, and refuses requests while no session
//! thread takes them.

pub(crate) mod rings;

use floe_fuse_wire::{Channel, Errno, Receipt, RequestBuffer};
use rustix::event::PollFlags;

/// The largest write that the kernel may send, in bytes. The mount is read-only, so none ever comes.
pub(crate) const WRITE_BYTES_MAX: u32 = 4096;

/// The largest read that the kernel may send, in bytes.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;

/// The size of request buffers in bytes: room for a `BATCH_FORGET` of thousands of nodes.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A connection to the kernel.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
}

/// How the kernel ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEnd {
    /// The mount is gone.
    Unmounted,
    /// The connection was aborted; the mount remains without a server.
    Aborted,
}

impl Connection {
    /// The connection of a channel, which must not block once it is served.
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Whether the kernel has ended the connection: the file system was unmounted, or the connection aborted.
    pub(crate) fn has_ended(&self) -> bool {
        self.events().contains(PollFlags::ERR)
    }

    /// How the connection ended, or `None` while it is alive. The kernel ends a connection before it reuses the device
    /// number, so this distinguishes a mount from its successor.
    pub(crate) fn end(&self) -> Option<ConnectionEnd> {
        if !self.has_ended() {
            return None;
        }
        // The connection has ended, so no request is taken here.
        match self.channel.receive(&mut RequestBuffer::new(REQUEST_BYTES_MAX)) {
            Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => {
                Some(ConnectionEnd::Aborted)
            }
            _ => Some(ConnectionEnd::Unmounted),
        }
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
