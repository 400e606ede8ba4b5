//! A mount that a failed background process may have left behind.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use floe_keeper::{Detach, MountEntry, MountTable, RingPermission, unmount};
use rustix::{fs::statfs, io::Errno};

use floe_mount::control::ServingProcess;

/// How long the keeper of the failed process has to unmount. It may have to wait until the threads of that process have ended.
const KEEPER_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between two looks at the mount.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The directory of a mount that the background process is to make. The process in the foreground is not confined, so it can
/// unmount if both the background process and its keeper were killed.
pub(super) struct UnprovenMount {
    /// `None` if a mount that a program serves was there before.
    directory: Option<PathBuf>,
}

impl UnprovenMount {
    /// Notes which mount is on the directory before the background process starts.
    pub(super) fn watch(directory: &Path) -> Self {
        Self { directory: (!has_served_mount(directory)).then(|| directory.to_owned()) }
    }

    /// Waits until the keeper of the failed process has unmounted, and otherwise unmounts what is left if it is dead.
    pub(super) fn clear(&self) {
        RingPermission::restore();
        let Some(directory) = &self.directory else { return };
        let until = Instant::now() + KEEPER_TIME_MAX;
        // The kernel may end the connection of a killed process a moment after the process.
        while has_served_mount(directory) && Instant::now() < until {
            thread::sleep(LOOK_INTERVAL);
        }
        if is_dead(directory) {
            // The failure was reported already.
            let _ = unmount(directory, Detach::Lazily);
        }
    }
}

/// Whether the topmost mount on the directory is one that a program serves. Does not access the mount.
fn has_served_mount(directory: &Path) -> bool {
    has_mount(directory, MountEntry::is_served)
}

/// Whether the mount on the directory is one whose program has ended.
fn is_dead(directory: &Path) -> bool {
    let is_dead_fuse = || statfs(directory).is_err_and(|error| error == Errno::NOTCONN);
    // The kernel's EROFS answers from its cache, whether or not the image behind it is served.
    let is_dead_front = || has_mount(directory, MountEntry::is_front) && ServingProcess::of(directory).is_none();
    has_served_mount(directory) && (is_dead_fuse() || is_dead_front())
}

fn has_mount(directory: &Path, is_meant: impl Fn(&MountEntry) -> bool) -> bool {
    let table = MountTable::read().unwrap_or_default();
    table.find(directory).is_ok_and(|entry| entry.is_some_and(is_meant))
}
