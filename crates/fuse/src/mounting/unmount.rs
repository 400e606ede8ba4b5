//! Unmounting.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use floe_image::ShownName;

use crate::{
    Keeper, MountTable,
    connection::pending::{ConnectionEnd, Pending},
    connection::serving_thread::may_wait_for_mount,
    mounting::place::{Place, flags, result_of},
};

/// How a mount that is in use is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detach {
    /// It is not unmounted: unmounting fails.
    Never,
    /// It disappears from the tree now, and ends when its last user is done.
    Lazily,
}

/// An error of unmounting a directory. Its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum UnmountError {
    /// Nothing is mounted there.
    NotMounted(PathBuf),
    /// The mount is neither a FUSE mount nor a front.
    NotFuse {
        /// The directory.
        path: PathBuf,
        /// The kind of the file system.
        file_system: String,
    },
    /// The mount is in use.
    Busy(PathBuf),
    /// Another mount covers the mount, on its directory or on one above, so that no path leads to it.
    Covered(PathBuf),
    /// This user may not unmount it.
    NoPermission {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The directory cannot be reached, or unmounting failed in another way.
    Failed {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
}

impl fmt::Display for UnmountError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted(path) => write!(formatter, "{} is not a mountpoint", path.shown()),
            Self::NotFuse { path, file_system } => {
                let path = path.shown();
                write!(formatter, "{path} is a mount of {file_system}, not one of Floe: run umount {path}")
            }
            Self::Busy(path) => write!(formatter, "{} is in use", path.shown()),
            Self::Covered(path) => write!(formatter, "{} is covered by another mount", path.shown()),
            Self::NoPermission { path, reason } => write!(formatter, "cannot unmount {}: {reason}", path.shown()),
            Self::Failed { path, error } => write!(formatter, "cannot unmount {}: {error}", path.shown()),
        }
    }
}

impl std::error::Error for UnmountError {}

/// Unmounts the FUSE mount or the front on a directory, also if it is dead.
///
/// # Errors
/// There is no such mount, it is in use, or this user may not unmount it.
pub fn unmount(path: &Path, detach: Detach) -> Result<(), UnmountError> {
    let failed = |error| UnmountError::Failed { path: path.to_owned(), error };
    let Ok(table) = MountTable::read() else {
        // Without /proc, only the kernel checks.
        let directory = std::fs::canonicalize(path).map_err(failed)?;
        return result_of(rustix::mount::unmount(&directory, flags(detach)), &directory);
    };
    let entry = table.find(path).map_err(failed)?.ok_or_else(|| UnmountError::NotMounted(path.to_owned()))?;
    if !entry.is_served() {
        let file_system = entry.file_system.clone();
        return Err(UnmountError::NotFuse { path: path.to_owned(), file_system });
    }
    Place::of(entry).unmount(detach).map_err(|error| match (error, entry.user_id) {
        (UnmountError::NoPermission { path, .. }, Some(owner)) if is_other_user(owner) => {
            let reason = match owner {
                0 => "it is root's mount, which only root can unmount".to_owned(),
                owner => format!("it was mounted by user {owner}: only that user and root can unmount it"),
            };
            UnmountError::NoPermission { path, reason }
        }
        (error, _) => error,
    })
}

/// Whether this process belongs neither to this user nor to root.
fn is_other_user(owner: u32) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && user.as_raw() != owner
}

/// Unmounts the mount of one [`Mount`](crate::Mount), but no later mount on its directory. Can be used from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    /// `None` if another program has mounted.
    place: Option<Place>,
    has_ended: Arc<AtomicBool>,
    /// The connection, as long as it is served.
    connection: Weak<Pending>,
    keeper: Option<Arc<Keeper>>,
}

impl Unmounter {
    /// An unmounter for the mount at a place, made by the keeper if there is one. Without a place, it unmounts nothing.
    pub(crate) fn new(place: Option<Place>, connection: Weak<Pending>, keeper: Option<Arc<Keeper>>) -> Self {
        Self { place, has_ended: Arc::default(), connection, keeper }
    }

    /// An unmounter for the mount at a place, which ends with the same connection.
    pub(crate) fn of(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Notes that the kernel has ended the connection, because the mount was unmounted. A mount on the directory is another
    /// one from now on, even if it has the same device number.
    pub(crate) fn note_end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    /// The device number of the mount's files, if it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.place.as_ref()?.device()
    }

    /// The path that leads to the mountpoint now.
    pub(crate) fn path_now(&self) -> Option<PathBuf> {
        self.place.as_ref().map(Place::path_now)
    }

    /// Whether the kernel's connection for the mount is alive. It outlives an unmount as long as the files are in use elsewhere.
    pub fn is_connected(&self) -> bool {
        let connection = self.connection.upgrade();
        !self.has_ended.load(Relaxed) && connection.is_some_and(|connection| connection.connection_end().is_none())
    }

    /// Whether the mount still exists, covered or not; `true` if this cannot be determined.
    pub fn is_mounted(&self) -> bool {
        let connection_end = self.connection.upgrade().and_then(|connection| connection.connection_end());
        if self.has_ended.load(Relaxed) || connection_end == Some(ConnectionEnd::Unmounted) {
            return false;
        }
        // A confined process may not ask for the mount by its ID.
        self.place.as_ref().is_some_and(|place| place.exists().unwrap_or_else(|| place.is_listed()))
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
        let Some(place) = &self.place else {
            return Err(UnmountError::NotMounted(PathBuf::from("/dev/fuse")));
        };
        // A mount that was moved exists, but not here.
        if !self.is_mounted() || !place.is_listed() {
            return Err(UnmountError::NotMounted(place.directory().to_owned()));
        }
        if !place.is_on_top() {
            return Err(UnmountError::Covered(place.directory().to_owned()));
        }
        match &self.keeper {
            Some(keeper) => keeper.unmount(place.directory(), detach),
            None => place.unmount(detach),
        }
    }
}
