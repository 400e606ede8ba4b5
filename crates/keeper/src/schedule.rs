//! How the keeper's threads are scheduled.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

/// Schedules a thread of the keeper: the calling one, or one that was just started.
pub type Schedule = Arc<dyn Fn(KeeperThread, Option<&JoinHandle<()>>) + Send + Sync>;

/// A thread of the keeper that programs wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeeperThread {
    /// Looks up the names of a launch.
    Walk,
    /// Reads ahead in a front.
    Readahead {
        /// Whether CPUs are short, so that the readers of the files would otherwise run first.
        is_urgent: bool,
    },
}

/// Starts a thread that does `work`, and returns its id.
///
/// # Errors
/// No thread can be started.
pub(crate) fn start_thread(
    name: &str,
    kind: KeeperThread,
    schedule: &Schedule,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<u32> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let own = Arc::clone(schedule);
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        own(kind, None);
        work();
    })?;
    schedule(kind, Some(&thread));
    receiver.recv().map_err(io::Error::other)
}
