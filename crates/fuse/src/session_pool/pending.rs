//! Requests that no session thread has taken yet.

use std::{os::fd::OwnedFd, sync::OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whether requests wait for a session thread.
#[derive(Default)]
pub(crate) struct Pending {
    device: OnceLock<OwnedFd>,
}

impl Pending {
    /// Names the descriptor that shows it. Only the first counts.
    pub(crate) fn look_at(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Whether a read of the device would not wait, be it for the end of the connection; `None` before there is one.
    pub(crate) fn is_there(&self) -> Option<bool> {
        let mut descriptors = [PollFd::new(self.device.get()?, PollFlags::IN)];
        Some(!matches!(poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0)))
    }
}
