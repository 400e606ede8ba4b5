//! The process that takes the place of a keeper that is killed.
//!
//! A confined process has no right to unmount. If its keeper were the only process with that right, a mount whose keeper was
//! killed could not be ended, and its process would leave a dead mount.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use floe_ipc::{receive, send};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use crate::{messages::Note, place::Place, ring_permission::RingPermission, settings::KeeperSettings};

/// The end of the keeper, which notes what it does.
#[derive(Debug)]
pub(super) struct Noting(OwnedFd);

/// The end of the standby.
#[derive(Debug)]
pub(super) struct Observing(OwnedFd);

/// What a keeper leaves that was killed.
pub(super) struct Inheritance {
    /// Its mount, and whether that is a front.
    pub(super) mounted: Option<(Place, bool)>,
    /// Whether the keeper has made the mount, and the user does not know yet that it works.
    pub(super) is_unconfirmed: bool,
}

/// Creates both ends.
///
/// # Errors
/// There are no descriptors left.
pub(super) fn notes() -> io::Result<(Observing, Noting)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Observing(ours), Noting(theirs)))
}

impl Noting {
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Notes something. Without a standby, nobody reads it.
    pub(super) fn note(&self, note: Note) {
        let _ = send(&self.0, &note, &[], SendFlags::empty());
    }
}

impl Observing {
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Waits for the end of the keeper. Returns what it leaves if it was killed. The process that is served has no part in this.
    pub(super) fn until_killed(self, settings: KeeperSettings<'_>) -> Option<Inheritance> {
        let mut mounted = None;
        let mut is_unconfirmed = settings.adopted.is_none();
        while let Ok(Some((note, _))) = receive(&self.0, RecvFlags::empty()) {
            match note {
                Note::Mounted { place, is_front } => mounted = Some((place, is_front)),
                Note::Confirmed => is_unconfirmed = false,
                Note::Ended => return None,
            }
        }
        RingPermission::restore();
        let mounted = settings.directory.zip(mounted);
        let mounted =
            mounted.map(|(directory, (place, is_front))| (Place::from_numbers(place, directory.to_owned()), is_front));
        Some(Inheritance { mounted, is_unconfirmed })
    }
}
