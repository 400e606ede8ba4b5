//! Refuses requests while no session thread is left to take them.

use floe_fuse_wire::{Channel, Receipt, RequestBuffer};
use rustix::event::PollFlags;

use super::REQUEST_BYTES_MAX;

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
