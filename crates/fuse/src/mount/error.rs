//! Errors of mounting.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use floe_image::{Shown, ShownName, start_error};
use floe_keeper::{FrontRefusal, MountFailure};

/// An error of mounting an image. Its text is one line that says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The directory cannot be reached.
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The mountpoint is not a directory.
    NotADirectory(PathBuf),
    /// The directory has a FUSE mount whose program has ended.
    Dead(PathBuf),
    /// The directory already has a mount that a program serves.
    Mounted {
        /// The directory.
        path: PathBuf,
        /// The source of that mount.
        source: String,
    },
    /// `/dev/fuse` cannot be opened.
    Device(io::Error),
    /// The mount needs fusermount3, which is not installed: that of a user other than root, or one with `auto_unmount`.
    NoFusermount,
    /// The kernel refuses the mount.
    Refused {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// fusermount3 refuses the mount and says why.
    Fusermount(String),
    /// The mountpoint `/dev/fd/N` is not an open descriptor of `/dev/fuse`.
    Descriptor {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The kernel's EROFS cannot be mounted in front.
    Front(FrontRefusal),
    /// The negotiation with the kernel failed.
    Handshake(io::Error),
    /// The root of the image cannot be read.
    Image(floe_image::Error),
    /// The threads that serve the mount could not be started.
    Threads(io::Error),
}

impl MountError {
    /// The error for a directory.
    pub fn of(directory: &Path, failure: MountFailure) -> Self {
        match failure {
            MountFailure::Device { error } => Self::Device(error),
            MountFailure::NoFusermount => Self::NoFusermount,
            MountFailure::Refused { error } => Self::Refused { path: directory.to_owned(), error },
            MountFailure::Fusermount { message } => Self::Fusermount(message),
            MountFailure::Front { refusal } => Self::Front(refusal),
        }
    }

    /// Whether memory was refused while the connection to the kernel was set up.
    pub fn is_no_memory(&self) -> bool {
        matches!(self, Self::Handshake(error) if error.raw_os_error() == Some(libc::ENOMEM))
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, error } => write!(formatter, "cannot mount on {}: {error}", path.shown()),
            Self::NotADirectory(path) => {
                write!(formatter, "cannot mount on {}: it is not a directory", path.shown())
            }
            Self::Dead(path) => {
                let path = path.shown();
                write!(
                    formatter,
                    "a dead mount (transport endpoint not connected) is on {path}: run floe umount {path}"
                )
            }
            Self::Mounted { path, source } => {
                let source = Shown(source.as_bytes());
                let path = path.shown();
                write!(formatter, "{source} is already mounted on {path}: to replace it, run floe umount {path} first")
            }
            Self::Device(error) if error.kind() == io::ErrorKind::NotFound => formatter.write_str(
                "there is no /dev/fuse: run modprobe fuse, or give the container the device (--device /dev/fuse)",
            ),
            Self::Device(error) => write!(formatter, "cannot open /dev/fuse: {error}"),
            Self::NoFusermount => formatter.write_str(
                "this mount needs fusermount3, which is not installed: install the package fuse3 (as root, omit \
                 auto_unmount instead)",
            ),
            Self::Refused { path, error } => match error.raw_os_error() {
                Some(libc::EPERM) => write!(
                    formatter,
                    "no permission to mount on {}: it needs CAP_SYS_ADMIN, or fusermount3 from the package fuse3",
                    path.shown()
                ),
                // The mounting process starts fusermount3.
                Some(libc::EAGAIN) => {
                    write!(
                        formatter,
                        "cannot mount on {}: {}",
                        path.shown(),
                        start_error(io::Error::from_raw_os_error(libc::EAGAIN))
                    )
                }
                Some(libc::ENODEV) => formatter.write_str("this kernel has no FUSE: run modprobe fuse"),
                Some(libc::EINVAL) => write!(
                    formatter,
                    "the kernel refuses the options of the mount on {} ({error}): leave out those given with -o",
                    path.shown()
                ),
                _ => write!(formatter, "cannot mount on {}: {error}", path.shown()),
            },
            Self::Fusermount(message) => formatter.write_str(message),
            Self::Descriptor { path, error } => {
                write!(formatter, "{} is not an open descriptor of /dev/fuse: {error}", path.shown())
            }
            Self::Front(refusal) => write!(
                formatter,
                "the kernel's EROFS cannot be mounted in front: {refusal}: use front=fuse instead of front=kernel"
            ),
            // The kernel refuses to read from a device without a mount.
            Self::Handshake(error) if error.raw_os_error() == Some(libc::EPERM) => formatter
                .write_str("the descriptor of /dev/fuse is not mounted: mount it with fd=N before the program starts"),
            Self::Handshake(_) if self.is_no_memory() => formatter.write_str(
                "there is no memory for the rings of the mount: raise the limit (ulimit -v), or use -o transport=dev",
            ),
            Self::Handshake(error) => write!(formatter, "the negotiation with the kernel failed: {error}"),
            Self::Image(error) => error.fmt(formatter),
            Self::Threads(error) => write!(formatter, "cannot start the threads that serve the mount: {error}"),
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Directory { error, .. }
            | Self::Device(error)
            | Self::Refused { error, .. }
            | Self::Descriptor { error, .. }
            | Self::Handshake(error)
            | Self::Threads(error) => Some(error),
            Self::Image(error) => Some(error),
            _ => None,
        }
    }
}
