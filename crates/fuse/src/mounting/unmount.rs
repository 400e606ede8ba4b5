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
    mounting::mountpoint::resolve,
};

/// What becomes of those who still use a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detach {
    /// There may be none.
    Never,
    /// The mount disappears from the tree now and ends when the last of them is done.
    Lazily,
}

/// Why a directory could not be unmounted. Its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum UnmountError {
    /// Nothing is mounted there.
    NotMounted(PathBuf),
    /// No program serves what is mounted there.
    NotFuse {
        /// The directory.
        path: PathBuf,
        /// The kind of the file system.
        file_system: String,
    },
    /// Somebody uses it.
    Busy(PathBuf),
    /// This user may not.
    NoPermission {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The directory cannot be reached, or anything else.
    Failed {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
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
            Self::NoPermission { path, reason } => write!(formatter, "cannot unmount {}: {reason}", path.display()),
            Self::Failed { path, error } => write!(formatter, "cannot unmount {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for UnmountError {}

/// Unmounts the FUSE mount or the front on a directory, dead or alive.
///
/// # Errors
/// There is none, it is in use, or this user may not.
pub fn unmount(path: &Path, detach: Detach) -> Result<(), UnmountError> {
    let directory = resolve(path).map_err(|error| UnmountError::Failed { path: path.to_owned(), error })?;
    // Without /proc the kernel alone tells.
    if let Ok(table) = MountTable::read() {
        let Some(entry) = table.on(&directory) else { return Err(UnmountError::NotMounted(path.to_owned())) };
        if !entry.is_served() {
            let file_system = entry.file_system.clone();
            return Err(UnmountError::NotFuse { path: path.to_owned(), file_system });
        }
    }
    unmount_directory(&directory, detach)
}

/// Unmounts what one [`Mount`](crate::Mount) has mounted, and nothing that came after it. Can be used from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: Option<PathBuf>,
    device: Option<(u32, u32)>,
    has_ended: Arc<AtomicBool>,
    /// Shows the connection as long as it is served.
    connection: Weak<Pending>,
    keeper: Option<Arc<Keeper>>,
}

impl Unmounter {
    /// An unmounter of what was just mounted on a directory, by a keeper if there is one; without a directory, of nothing.
    pub(crate) fn new(directory: Option<PathBuf>, connection: Weak<Pending>, keeper: Option<Arc<Keeper>>) -> Self {
        let unmounter = Self { directory: None, device: None, has_ended: Arc::default(), connection, keeper };
        match directory {
            Some(directory) => unmounter.of(directory),
            None => unmounter,
        }
    }

    /// An unmounter of what was just mounted on a directory and ends with the same connection.
    pub(crate) fn of(self, directory: PathBuf) -> Self {
        let device = MountTable::read().ok().and_then(|table| Some(table.on(&directory)?.device));
        Self { directory: Some(directory), device, ..self }
    }

    /// Notes that the kernel has ended the connection: somebody has unmounted. What is seen from now on is another mount,
    /// though it may have got the device number that became free.
    pub(crate) fn note_end(&self) {
        self.has_ended.store(true, Relaxed);
    }

    /// The device number of the mount's files, as far as it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Whether the mount is still to be seen. Where it cannot be known, it is taken to be.
    pub fn is_mounted(&self) -> bool {
        let connection_end = self.connection.upgrade().and_then(|connection| connection.connection_end());
        if self.has_ended.load(Relaxed) || connection_end == Some(ConnectionEnd::Unmounted) {
            return false;
        }
        match (&self.directory, self.device, MountTable::read()) {
            (None, _, _) => false,
            (Some(directory), Some(device), Ok(table)) => {
                table.on(directory).is_some_and(|entry| entry.device == device)
            }
            _ => true,
        }
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// It is not mounted any more, something else is mounted over it, or it is in use.
    pub fn unmount(&self, detach: Detach) -> Result<(), UnmountError> {
        may_wait_for_mount();
        match &self.directory {
            Some(directory) if self.is_mounted() => match &self.keeper {
                Some(keeper) => keeper.unmount(directory, detach),
                None => unmount_directory(directory, detach),
            },
            Some(directory) => Err(UnmountError::NotMounted(directory.clone())),
            None => Err(UnmountError::NotMounted(PathBuf::from("/dev/fuse"))),
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
                    reason: "a user needs fusermount3 for it, from the package fuse3".to_owned(),
                },
            })
        }
        Err(rustix::io::Errno::INVAL) => Err(UnmountError::NotMounted(path())),
        Err(error) => Err(UnmountError::Failed { path: path(), error: error.into() }),
    }
}
