//! The messages between a process that serves a mount and its keeper.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use floe_engine::Priority;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{FrontRefusal, MountError, UnmountError};

/// The longest answer, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 10;

/// A request to the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Question {
    Mount,
    /// Create the hidden FUSE mount. If the number is not 0, its connection is to use rings, and the kernel is to permit that.
    MountHidden(u32),
    /// Mount the kernel's EROFS in front of the hidden mount, and start the thread that moves bytes there with this priority.
    MountFront(u32),
    /// Take over the mount that another process has made on the directory.
    Adopt,
    Unmount,
    UnmountLazily,
    ReadAhead,
    Users,
    /// Whether the thread with this id has administrator rights.
    IsAdministrator(u32),
    /// Start the thread that looks up the names of a launch, with this priority.
    Walk(u32),
    /// The mount works, and its user knows it: from now on it outlives the process.
    Works,
    /// Stop. This has no answer.
    End,
}

/// An answer of the keeper: a kind, an errno or 0, and a text.
pub(in crate::mounting) struct Answer {
    pub(super) kind: u8,
    pub(super) errno: i32,
    pub(super) text: String,
}

/// The kind of an answer that is not an error.
pub(super) const DONE: u8 = 0;

/// The text of the answer to [`Question::MountHidden`] if rings are permitted.
pub(super) const RINGS_ARE_PERMITTED: &str = "rings";

impl Question {
    pub(super) fn to_bytes(self) -> [u8; 5] {
        let (kind, argument) = match self {
            Self::Mount => (1, 0),
            Self::Unmount => (2, 0),
            Self::UnmountLazily => (3, 0),
            Self::ReadAhead => (4, 0),
            Self::Users => (5, 0),
            Self::IsAdministrator(thread) => (6, thread),
            Self::MountHidden(rings) => (7, rings),
            Self::MountFront(priority) => (8, priority),
            Self::Walk(priority) => (9, priority),
            Self::Adopt => (10, 0),
            Self::End => (11, 0),
            Self::Works => (12, 0),
        };
        let [first, second, third, fourth] = u32::to_le_bytes(argument);
        [kind, first, second, third, fourth]
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, argument) = bytes.split_first()?;
        let argument = u32::from_le_bytes(argument.try_into().ok()?);
        Some(match kind {
            1 => Self::Mount,
            2 => Self::Unmount,
            3 => Self::UnmountLazily,
            4 => Self::ReadAhead,
            5 => Self::Users,
            6 => Self::IsAdministrator(argument),
            7 => Self::MountHidden(argument),
            8 => Self::MountFront(argument),
            9 => Self::Walk(argument),
            10 => Self::Adopt,
            11 => Self::End,
            12 => Self::Works,
            _ => return None,
        })
    }
}

impl Answer {
    pub(super) fn done() -> Self {
        Self { kind: DONE, errno: 0, text: String::new() }
    }

    pub(super) fn failed(kind: u8, error: &io::Error) -> Self {
        Self { kind, errno: error.raw_os_error().unwrap_or(0), text: error.to_string() }
    }

    /// The answer if the kernel's EROFS cannot be mounted in front.
    pub(super) fn refused(error: &io::Error) -> Self {
        Self { kind: 5, errno: 0, text: FrontRefusal::new(error).reason }
    }

    pub(super) fn of_mount_error(error: MountError) -> Self {
        match error {
            MountError::Device(error) => Self::failed(1, &error),
            MountError::NoFusermount => Self { kind: 2, ..Self::done() },
            MountError::Fusermount(text) => Self { kind: 3, text, ..Self::done() },
            MountError::Refused { error, .. } => Self::failed(4, &error),
            error => Self::failed(4, &io::Error::other(error.to_string())),
        }
    }

    pub(in crate::mounting) fn of_unmount(result: Result<(), UnmountError>) -> Self {
        match result {
            Ok(()) => Self::done(),
            Err(UnmountError::NotMounted(_)) => Self { kind: 1, ..Self::done() },
            Err(UnmountError::Busy(_)) => Self { kind: 2, ..Self::done() },
            Err(UnmountError::NoPermission { reason, .. }) => Self { kind: 3, text: reason, ..Self::done() },
            Err(UnmountError::Failed { error, .. }) => Self::failed(4, &error),
            Err(UnmountError::Covered(_)) => Self { kind: 5, ..Self::done() },
            Err(UnmountError::NotFuse { file_system, .. }) => Self { kind: 6, text: file_system, ..Self::done() },
        }
    }

    /// The result of unmounting the directory `path` that [`Answer::of_unmount`] tells.
    pub(in crate::mounting) fn into_unmount(self, path: &Path) -> Result<(), UnmountError> {
        let path = path.to_owned();
        match self.kind {
            DONE => Ok(()),
            1 => Err(UnmountError::NotMounted(path)),
            2 => Err(UnmountError::Busy(path)),
            3 => Err(UnmountError::NoPermission { path, reason: self.text }),
            5 => Err(UnmountError::Covered(path)),
            6 => Err(UnmountError::NotFuse { path, file_system: self.text }),
            _ => Err(UnmountError::Failed { path, error: self.error() }),
        }
    }

    pub(super) fn error(&self) -> io::Error {
        match self.errno {
            0 => io::Error::other(self.text.clone()),
            errno => io::Error::from_raw_os_error(errno),
        }
    }

    pub(in crate::mounting) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind];
        bytes.extend_from_slice(&self.errno.to_le_bytes());
        bytes.extend(self.text.bytes().take(ANSWER_BYTES_MAX - bytes.len()));
        bytes
    }

    pub(in crate::mounting) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (errno, text) = rest.split_first_chunk()?;
        Some(Self { kind: *kind, errno: i32::from_le_bytes(*errno), text: String::from_utf8_lossy(text).into_owned() })
    }
}

/// Receives a message and its descriptors. Returns length 0 once the other end is closed.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, descriptors.collect()))
}

/// A priority as the argument of a question to the keeper.
pub(super) fn priority_to_number(priority: Priority) -> u32 {
    match priority {
        Priority::Auto => 0,
        Priority::Fifo(level) => 0x100 | u32::from(level),
        Priority::Nice(level) => 0x200 | u32::from(level.cast_unsigned()),
        Priority::Slice => 0x300,
        Priority::Normal => 0x400,
    }
}

/// The inverse of [`priority_to_number`].
pub(super) fn priority_from_number(number: u32) -> Priority {
    let [level, kind, ..] = number.to_le_bytes();
    match kind {
        0 => Priority::Auto,
        1 => Priority::Fifo(level),
        2 => Priority::Nice(level.cast_signed()),
        3 => Priority::Slice,
        _ => Priority::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_survive_their_numbers() {
        for priority in [
            Priority::Auto,
            Priority::Fifo(1),
            Priority::Nice(-20),
            Priority::Nice(19),
            Priority::Slice,
            Priority::Normal,
        ] {
            assert_eq!(priority_from_number(priority_to_number(priority)), priority);
        }
    }
}
