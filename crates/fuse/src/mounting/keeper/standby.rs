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
use crate::{
    connection::ring_permission::RingPermission,
    mounting::{
        parent_sys::Parent,
        place::{Place, PlaceNumbers},
    },
};

/// The length of a note, in bytes: its kind, whether the mount is a front, and the numbers of its place.
const NOTE_BYTES: usize = 2 + size_of::<PlaceNumbers>();

/// What a keeper tells the process that stands by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// It has mounted or adopted the mount at this place. The user does not know yet that it works.
    Mounted { place: PlaceNumbers, is_front: bool },
    /// The user knows that the mount works.
    Works,
    /// It ends, and leaves nothing to be done.
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
        let mut mounted = None;
        let mut is_unproven = kept.adopted.is_none();
        let mut bytes = [0; NOTE_BYTES];
        // A note is shorter than what a pipe writes at once, so it is never incomplete.
        while self.0.read_exact(&mut bytes).is_ok() {
            match Note::from_bytes(bytes) {
                Some(Note::Mounted { place, is_front }) => mounted = Some((place, is_front)),
                Some(Note::Works) => is_unproven = false,
                Some(Note::Ends) => return None,
                None => {}
            }
        }
        RingPermission::restore();
        let mut held = Held::new(None, parent, None);
        if let Some((directory, (place, is_front))) = kept.directory.zip(mounted) {
            held.inherit(Place::from_numbers(place, directory.to_owned()), is_front, is_unproven);
        }
        Some(held)
    }
}

impl Note {
    fn to_bytes(self) -> [u8; NOTE_BYTES] {
        let (kind, is_front, place) = match self {
            Self::Mounted { place, is_front } => (1, is_front, place),
            Self::Works => (2, false, PlaceNumbers::default()),
            Self::Ends => (3, false, PlaceNumbers::default()),
        };
        let mut bytes = [0; NOTE_BYTES];
        (bytes[0], bytes[1]) = (kind, is_front.into());
        for (bytes, number) in bytes[2..].chunks_exact_mut(size_of::<u64>()).zip(place) {
            bytes.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; NOTE_BYTES]) -> Option<Self> {
        let [kind, is_front, numbers @ ..] = bytes;
        let mut place = PlaceNumbers::default();
        for (number, bytes) in place.iter_mut().zip(numbers.as_chunks().0) {
            *number = u64::from_ne_bytes(*bytes);
        }
        match kind {
            1 => Some(Self::Mounted { place, is_front: is_front != 0 }),
            2 => Some(Self::Works),
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
        let place: PlaceNumbers = std::array::from_fn(|index| u64::MAX >> index);
        let mounted = [false, true].map(|is_front| Note::Mounted { place, is_front });
        for note in mounted.into_iter().chain([Note::Works, Note::Ends]) {
            assert_eq!(Note::from_bytes(note.to_bytes()), Some(note));
        }
        assert_eq!(Note::from_bytes([0; NOTE_BYTES]), None);
    }
}
