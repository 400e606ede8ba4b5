//! Unmounting.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustix::mount::UnmountFlags;

use crate::{
    Keeper, MountTable,
    connection::pending::{ConnectionEnd, Pending},
    connection::serving_thread::may_wait_for_mount,
    mounting::fusermount,
    mounting::mount_id_sys::MountId,
    mounting::mountpoint::resolve,
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
            Self::NotMounted(path) => write!(formatter, "{} is not a mountpoint", path.display()),
            Self::NotFuse { path, file_system } => {
                let path = path.display();
                write!(formatter, "{path} is a mount of {file_system}, not one of Floe: run umount {path}")
            }
            Self::Busy(path) => write!(formatter, "{} is in use", path.display()),
            Self::Covered(path) => write!(formatter, "{} is covered by another mount", path.display()),
            Self::NoPermission { path, reason } => write!(formatter, "cannot unmount {}: {reason}", path.display()),
            Self::Failed { path, error } => write!(formatter, "cannot unmount {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for UnmountError {}

/// Unmounts the FUSE mount or the front on a directory, also if it is dead.
///
/// # Errors
/// There is no such mount, it is in use, or this user may not unmount it.
pub fn unmount(path: &Path, detach: Detach) -> Result<(), UnmountError> {
    let directory = resolve(path).map_err(|error| UnmountError::Failed { path: path.to_owned(), error })?;
    let mut owner = None;
    // Without /proc, only the kernel checks.
    if let Ok(table) = MountTable::read() {
        let Some(entry) = table.on(&directory) else { return Err(UnmountError::NotMounted(path.to_owned())) };
        if !entry.is_served() {
            let file_system = entry.file_system.clone();
            return Err(UnmountError::NotFuse { path: path.to_owned(), file_system });
        }
        owner = entry.user_id;
    }
    unmount_directory(&directory, detach).map_err(|error| match (error, owner) {
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
    directory: Option<PathBuf>,
    device: Option<(u32, u32)>,
    /// The ID of the mount, if the kernel has unique ones.
    id: Option<MountId>,
    has_ended: Arc<AtomicBool>,
    /// The connection, as long as it is served.
    connection: Weak<Pending>,
    keeper: Option<Arc<Keeper>>,
}

impl Unmounter {
    /// An unmounter for the mount just made on a directory, by the keeper if there is one. Without a directory, it unmounts
    /// nothing.
    pub(crate) fn new(directory: Option<PathBuf>, connection: Weak<Pending>, keeper: Option<Arc<Keeper>>) -> Self {
        let unmounter = Self { directory: None, device: None, id: None, has_ended: Arc::default(), connection, keeper };
        match directory {
            Some(directory) => unmounter.of(directory),
            None => unmounter,
        }
    }

    /// An unmounter for the mount just made on a directory, which ends with the same connection.
    pub(crate) fn of(self, directory: PathBuf) -> Self {
        let device = MountTable::read().ok().and_then(|table| Some(table.on(&directory)?.device));
        let id = device.and_then(|device| MountId::of(&directory, device));
        Self { directory: Some(directory), device, id, ..self }
    }

    /// Notes that the kernel has ended the connection, because the mount was unmounted. A mount on the directory is another
    /// one from now on, even if it has the same device number.
    pub(crate) fn note_end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    /// The device number of the mount's files, if it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
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
        self.id.and_then(MountId::is_mounted).unwrap_or_else(|| self.is_listed())
    }

    /// A directory of this mount namespace on which the files are mounted, by a bind mount or because the mount was moved.
    pub fn mountpoint_elsewhere(&self) -> Option<PathBuf> {
        let (directory, device) = (self.directory.as_deref(), self.device?);
        let table = MountTable::read().ok()?;
        table.mountpoints_of(device).find(|mountpoint| Some(*mountpoint) != directory).map(Path::to_owned)
    }

    /// Whether the mount exists, but another one covers it; `false` if this cannot be determined.
    pub fn is_covered(&self) -> bool {
        self.is_mounted() && self.is_listed() && !self.is_on_top()
    }

    /// Whether the mount table has the mount; `true` if this cannot be determined.
    fn is_listed(&self) -> bool {
        match (&self.directory, self.device, MountTable::read()) {
            (None, _, _) => false,
            (Some(directory), Some(device), Ok(table)) => table.has(directory, device),
            _ => true,
        }
    }

    /// Whether the directory leads to the mount, and not to one that covers it; `true` if this cannot be determined.
    fn is_on_top(&self) -> bool {
        let Some(directory) = &self.directory else { return false };
        let by_id = self.id.and_then(|id| id.is_on(directory));
        by_id.unwrap_or_else(|| match (self.device, MountTable::read()) {
            (Some(device), Ok(table)) => table.on(directory).is_some_and(|entry| entry.device == device),
            _ => true,
        })
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// It is no longer mounted, another mount covers it, or it is in use.
    pub fn unmount(&self, detach: Detach) -> Result<(), UnmountError> {
        may_wait_for_mount();
        let Some(directory) = &self.directory else {
            return Err(UnmountError::NotMounted(PathBuf::from("/dev/fuse")));
        };
        // A mount that was moved exists, but not here.
        if !self.is_mounted() || !self.is_listed() {
            return Err(UnmountError::NotMounted(directory.clone()));
        }
        if !self.is_on_top() {
            return Err(UnmountError::Covered(directory.clone()));
        }
        match &self.keeper {
            Some(keeper) => keeper.unmount(directory, detach),
            None => unmount_directory(directory, detach),
        }
    }
}

fn unmount_directory(directory: &Path, detach: Detach) -> Result<(), UnmountError> {
    let path = || directory.to_owned();
    let flags = match detach {
        Detach::Never => UnmountFlags::NOFOLLOW,
        Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(directory, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(UnmountError::Busy(path())),
        Err(rustix::io::Errno::PERM) => {
            fusermount::unmount(directory, detach == Detach::Lazily).map_err(|message| match message {
                Some(message) if message.contains("busy") => UnmountError::Busy(path()),
                Some(reason) => UnmountError::NoPermission { path: path(), reason },
                None => UnmountError::NoPermission {
                    path: path(),
                    reason: "users other than root need fusermount3, from the package fuse3".to_owned(),
                },
            })
        }
        Err(rustix::io::Errno::INVAL) => Err(UnmountError::NotMounted(path())),
        Err(error) => Err(UnmountError::Failed { path: path(), error: error.into() }),
    }
}
