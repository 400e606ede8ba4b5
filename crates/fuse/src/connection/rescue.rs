//! Answers for requests that no session thread is left to take.

use floe_fuse_wire::{Channel, Receipt, RequestBuffer};
use rustix::event::PollFlags;

use super::REQUEST_BYTES_MAX;

/// A way to the kernel of its own, on which requests are refused while all session threads are stuck in the source.
pub(crate) struct Rescue {
    channel: Channel,
}

impl Rescue {
    /// A rescue over a channel that never waits.
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Whether the file system was unmounted, or the connection aborted.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.events().contains(PollFlags::ERR)
    }

    /// Answers the requests that wait to be taken with `EIO`.
    pub(crate) fn refuse_pending(&self) {
        if self.events().contains(PollFlags::IN) {
            let mut buffer = RequestBuffer::new(REQUEST_BYTES_MAX);
            // A reply that is dropped says EIO.
            while let Ok(Receipt::Request(_)) = self.channel.receive(&mut buffer) {}
        }
    }

    /// What could be done now without waiting.
    fn events(&self) -> PollFlags {
        self.channel.events().unwrap_or(PollFlags::empty())
    }
}
