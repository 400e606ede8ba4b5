//! State that lives until the mount ends.

use std::{path::PathBuf, sync::Arc, time::Duration};

use floe_keeper::Keeper;

use crate::{handover::ServiceManager, log::MountLog, reachable_path::ReachablePath, spill_directory::SpillDirectory};

/// State that lives until the mount ends; its drop ends the keeper.
pub(crate) struct Held {
    /// The image as users name it, without credentials.
    pub(crate) image: PathBuf,
    /// The process that mounts and unmounts for this one.
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) log: Arc<MountLog>,
    pub(crate) manager: Option<ServiceManager>,
    /// The pipe that gets a message when the mount works.
    pub(crate) notify_pipe: Option<ReachablePath>,
    /// Unmount after this time without use.
    pub(crate) idle: Option<Duration>,
    pub(crate) spill_directory: Option<SpillDirectory>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.end();
    }
}
