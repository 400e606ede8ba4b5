//! How the keeper's threads are scheduled.

use std::{sync::Arc, thread::JoinHandle};

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
