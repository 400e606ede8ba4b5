//! The process that takes the place of a keeper that is killed.
//!
//! A confined process has no right to unmount. If its keeper were the only process with that right, a mount whose keeper was
//! killed could not be ended, and its process would leave a dead mount.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use super::{Kept, held::Held};
use crate::{connection::ring_permission::RingPermission, mounting::parent_sys::Parent};

/// The length of a note, in bytes: its kind, and the device number of the mount.
const NOTE_BYTES: usize = 9;

/// What a keeper tells the process that stands by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// It has mounted or adopted the mount with this device number. Its user does not know yet that it works.
    Mounted((u32, u32)),
    /// The mount works.
    Works((u32, u32)),
    /// It ends, and has done all that was to be done.
    Ends,
}

/// The end of the keeper, which notes what it does.
#[derive(Debug)]
pub(super) struct Noting(PipeWriter);

/// The end of the process that stands by.
#[derive(Debug)]
pub(super) struct Observing(PipeReader);

/// Creates both ends.
///
/// # Errors
/// There are no descriptors left.
pub(super) fn notes() -> io::Result<(Observing, Noting)> {
    let (reader, writer) = io::pipe()?;
    Ok((Observing(reader), Noting(writer)))
}

impl Noting {
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Notes something. Without a process that stands by, nobody reads it.
    pub(super) fn note(&self, note: Note) {
        let _ = (&self.0).write_all(&note.to_bytes());
    }
}

impl Observing {
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Waits for the end of the keeper. If it was killed, returns what it held: its mount, if that still exists. The process that is
    /// served has no part in this.
    pub(super) fn until_killed(mut self, kept: Kept<'_>, parent: Option<Arc<Parent>>) -> Option<Held> {
        let mut last = None;
        let mut bytes = [0; NOTE_BYTES];
        // A note is shorter than what a pipe writes at once, so it is never incomplete.
        while self.0.read_exact(&mut bytes).is_ok() {
            last = Note::from_bytes(bytes);
        }
        let (device, is_unproven) = match last {
            Some(Note::Ends) => return None,
            Some(Note::Mounted(device)) => (Some(device), true),
            Some(Note::Works(device)) => (Some(device), false),
            None => (None, false),
        };
        RingPermission::restore();
        let mut held = Held::new(parent, None);
        if let Some((directory, device)) = kept.directory.zip(device)
            && held.adopt(directory, device)
        {
            held.is_unproven = is_unproven && kept.adopted.is_none();
        }
        Some(held)
    }
}

impl Note {
    fn to_bytes(self) -> [u8; NOTE_BYTES] {
        let (kind, (major, minor)) = match self {
            Self::Mounted(device) => (1, device),
            Self::Works(device) => (2, device),
            Self::Ends => (3, (0, 0)),
        };
        let mut bytes = [kind; NOTE_BYTES];
        bytes[1..5].copy_from_slice(&u32::to_ne_bytes(major));
        bytes[5..].copy_from_slice(&u32::to_ne_bytes(minor));
        bytes
    }

    fn from_bytes([kind, a, b, c, d, e, f, g, h]: [u8; NOTE_BYTES]) -> Option<Self> {
        let device = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        match kind {
            1 => Some(Self::Mounted(device)),
            2 => Some(Self::Works(device)),
            3 => Some(Self::Ends),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_arrive_as_they_were_written() {
        for note in [Note::Mounted((0, 57)), Note::Works((4095, 1 << 19)), Note::Ends] {
            assert_eq!(Note::from_bytes(note.to_bytes()), Some(note));
        }
        assert_eq!(Note::from_bytes([0; NOTE_BYTES]), None);
    }
}
