//! Tells the end of a mount.

use std::{
    fmt,
    sync::mpsc::{self, Receiver, Sender},
};

use super::Ended;
use crate::setup::EndSink;

/// Tells the end of a mount to the thread that waits for it, and to the sink in the setup.
#[derive(Clone)]
pub(super) struct EndSender {
    sender: Sender<Ended>,
    sink: Option<EndSink>,
}

impl EndSender {
    /// A sender, and the receiver of [`Mount::wait`](crate::Mount::wait).
    pub(super) fn new(sink: Option<EndSink>) -> (Self, Receiver<Ended>) {
        let (sender, receiver) = mpsc::channel();
        (Self { sender, sink }, receiver)
    }

    pub(super) fn send(&self, end: Ended) {
        // The waiter may be gone.
        let _ = self.sender.send(end);
        if let Some(sink) = &self.sink {
            sink();
        }
    }
}

impl fmt::Debug for EndSender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EndSender").finish_non_exhaustive()
    }
}
