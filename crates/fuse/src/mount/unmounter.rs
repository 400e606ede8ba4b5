//! Unmounting of one mount.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use floe_keeper::{Detach, Keeper, MountTable, Place, UnmountError, UnmountReason, may_wait_for_mount};

use crate::connection::{Connection, ConnectionEnd};

/// Unmounts the mount of one [`Mount`](crate::Mount), but no later mount on its directory. Can be used from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    /// `None` if another program has mounted.
    place: Option<Place>,
    has_ended: Arc<AtomicBool>,
    /// The connection, as long as it is served.
    connection: Weak<Connection>,
    keeper: Option<Arc<Keeper>>,
}

impl Unmounter {
    /// An unmounter for the mount at a place, made by the keeper if there is one. Without a place, it unmounts nothing.
    pub(super) fn new(place: Option<Place>, connection: Weak<Connection>, keeper: Option<Arc<Keeper>>) -> Self {
        Self { place, has_ended: Arc::default(), connection, keeper }
    }

    /// An unmounter for the mount at a place, which ends with the same connection.
    pub(super) fn of(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Notes that the kernel has ended the connection, because the mount was unmounted. A mount on the directory is another
    /// one from now on, even if it has the same device number.
    pub(super) fn note_end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    /// The device number of the mount's files, if it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.place.as_ref()?.device()
    }

    /// Whether the kernel's connection for the mount is alive. It outlives an unmount as long as the files are in use elsewhere.
    pub fn is_connected(&self) -> bool {
        let connection = self.connection.upgrade();
        !self.has_ended.load(Relaxed) && connection.is_some_and(|connection| !connection.has_ended())
    }

    /// Whether the mount still exists, covered or not; `true` if this cannot be determined.
    pub fn is_mounted(&self) -> bool {
        let connection_end = self.connection.upgrade().and_then(|connection| connection.end());
        if self.has_ended.load(Relaxed) || connection_end == Some(ConnectionEnd::Unmounted) {
            return false;
        }
        self.place.as_ref().is_some_and(Place::is_mounted)
    }

    /// A directory of this mount namespace on which the files are mounted, by a bind mount or because the mount was moved.
    pub fn mountpoint_elsewhere(&self) -> Option<PathBuf> {
        let place = self.place.as_ref()?;
        let (directory, table) = (place.path_now(), MountTable::read().ok()?);
        table.mountpoints_of(place.device()?).find(|mountpoint| *mountpoint != directory).map(Path::to_owned)
    }

    /// Whether the mount exists, but another one covers it; `false` if this cannot be determined.
    pub fn is_covered(&self) -> bool {
        self.is_mounted() && self.place.as_ref().is_some_and(|place| place.is_listed() && !place.is_on_top())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// It is no longer mounted, another mount covers it, or it is in use.
    pub fn unmount(&self, detach: Detach) -> Result<(), UnmountError> {
        may_wait_for_mount();
        let not_mounted = |path| UnmountError { path, reason: UnmountReason::NotMounted };
        let place = self.place.as_ref().ok_or_else(|| not_mounted(PathBuf::from("/dev/fuse")))?;
        if !self.is_mounted() {
            return Err(not_mounted(place.directory().to_owned()));
        }
        place.check_unmountable()?;
        match &self.keeper {
            Some(keeper) => keeper.unmount(place.directory(), detach),
            None => place.unmount(detach),
        }
    }
}
