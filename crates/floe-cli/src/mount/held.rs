//! What a mount holds from its preparation to its end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use floe_keeper::Keeper;

use super::spill_directory::SpillDirectory;
use crate::{handover::ServiceManager, mount_log::MountLog, reachable_path::ReachablePath};

/// What a mount holds from its preparation to its end.
pub(super) struct Held {
    /// The image as users name it, without credentials.
    pub(super) image: PathBuf,
    /// The process that mounts and unmounts for this one.
    pub(super) keeper: Arc<Keeper>,
    pub(super) log: Arc<MountLog>,
    pub(super) manager: Option<ServiceManager>,
    /// The pipe that gets a message when the mount works.
    pub(super) notify_pipe: Option<ReachablePath>,
    /// Unmount after this time without use.
    pub(super) idle: Option<Duration>,
    pub(super) _spill_directory: Option<SpillDirectory>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.end();
    }
}
