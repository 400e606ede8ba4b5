//! Why a mount cannot be made or ended.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_ipc::encoded;
use rustix::io::Errno;

encoded! {
    /// Why a mount cannot be made on a directory.
    #[derive(Debug)]
    pub enum MountFailure {
        /// `/dev/fuse` cannot be opened.
        1 => Device {
            /// The error of the operating system.
            error: io::Error,
        },
        /// The mount needs fusermount3, which is not installed.
        2 => NoFusermount,
        /// The kernel refuses the mount.
        3 => Refused {
            /// The error of the operating system.
            error: io::Error,
        },
        /// fusermount3 refuses the mount.
        4 => Fusermount {
            /// Its message.
            message: String,
        },
        /// The kernel's EROFS cannot be mounted in front.
        5 => Front {
            /// The reason.
            refusal: FrontRefusal,
        },
    }
}

encoded! {
    /// The reason why the kernel's EROFS cannot be mounted in front, in one line.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct FrontRefusal {
        reason: String,
    }
}

encoded! {
    /// Why a mount cannot be ended.
    #[derive(Debug)]
    pub enum UnmountReason {
        /// Nothing is mounted there.
        1 => NotMounted,
        /// The mount is neither a FUSE mount nor a front.
        2 => NotFuse {
            /// The kind of the file system.
            file_system: String,
        },
        /// The mount is in use.
        3 => Busy,
        /// Another mount covers the mount, on its directory or on one above, so that no path leads to it.
        4 => Covered,
        /// This user may not unmount it.
        5 => NoPermission {
            /// Why not.
            explanation: String,
        },
        /// The directory cannot be reached, or unmounting failed in another way.
        6 => Failed {
            /// The error of the operating system.
            error: io::Error,
        },
    }
}

/// An error of unmounting a directory. Its text is one line.
#[derive(Debug)]
pub struct UnmountError {
    /// The directory.
    pub path: PathBuf,
    /// What is wrong.
    pub reason: UnmountReason,
}

impl MountFailure {
    /// The kernel's EROFS cannot be mounted in front.
    pub(crate) fn front(error: io::Error) -> Self {
        Self::Front { refusal: error.into() }
    }
}

impl UnmountReason {
    /// The error for a directory.
    pub(crate) fn at(self, path: impl Into<PathBuf>) -> UnmountError {
        UnmountError { path: path.into(), reason: self }
    }

    /// The result of umount(2).
    pub(crate) fn of(error: Errno) -> Self {
        match error {
            Errno::BUSY => Self::Busy,
            Errno::INVAL => Self::NotMounted,
            error => Self::Failed { error: error.into() },
        }
    }
}

impl UnmountError {
    /// The directory cannot be reached, or unmounting failed in another way.
    pub(crate) fn failed(path: &Path, error: impl Into<io::Error>) -> Self {
        UnmountReason::Failed { error: error.into() }.at(path)
    }
}

impl fmt::Display for UnmountError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.shown();
        match &self.reason {
            UnmountReason::NotMounted => write!(formatter, "{path} is not a mountpoint"),
            UnmountReason::NotFuse { file_system } => {
                write!(formatter, "{path} is a mount of {file_system}, not one of Floe: run umount {path}")
            }
            UnmountReason::Busy => write!(formatter, "{path} is in use"),
            UnmountReason::Covered => write!(formatter, "{path} is covered by another mount"),
            UnmountReason::NoPermission { explanation } => write!(formatter, "cannot unmount {path}: {explanation}"),
            UnmountReason::Failed { error } => write!(formatter, "cannot unmount {path}: {error}"),
        }
    }
}

impl std::error::Error for UnmountError {}

impl From<io::Error> for FrontRefusal {
    fn from(error: io::Error) -> Self {
        let reason = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "it needs CAP_SYS_ADMIN outside of user namespaces".to_owned(),
            Some(libc::ENODEV) => "the kernel has no EROFS (modprobe erofs)".to_owned(),
            Some(libc::ENOTBLK) => {
                "the kernel's EROFS cannot mount files: it needs Linux 6.12 and CONFIG_EROFS_FS_BACKED_BY_FILE"
                    .to_owned()
            }
            Some(libc::ENOSYS) => "the kernel has no fsopen(2): it needs Linux 5.2".to_owned(),
            _ => error.to_string(),
        };
        Self { reason }
    }
}

impl From<String> for FrontRefusal {
    fn from(reason: String) -> Self {
        Self { reason }
    }
}

impl fmt::Display for FrontRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}
