//! The messages between a process that serves a mount and its keeper, and those between the keeper and its standby.

use std::io;

use floe_ipc::encoded;

use crate::{
    failure::{MountFailure, UnmountReason},
    front::FrontOptions,
    place::PlaceNumbers,
};

encoded! {
    /// A request to the keeper. It names no path: the settings of the keeper do.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Request {
        1 => Mount {
            /// Whether its connection is to use rings, so that the kernel must permit that.
            has_rings: bool,
        },
        /// Take over the mount that another process has made on the directory.
        2 => Adopt,
        /// Create the hidden FUSE mount.
        3 => MountHidden {
            /// Whether its connection is to use rings, so that the kernel must permit that.
            has_rings: bool,
        },
        /// Mount the kernel's EROFS in front of the hidden mount, and start the thread that reads ahead there.
        4 => MountFront { options: FrontOptions },
        /// The mount works, and its user knows it: from now on, the keeper does not unmount it when the process ends.
        5 => ConfirmMount,
        6 => SetReadahead,
        /// Start the thread that looks up the names of a launch.
        7 => Walk,
        8 => FindUsers,
        /// Whether the thread with this id has administrator rights.
        9 => IsAdministrator { thread: u32 },
        10 => Unmount { is_lazy: bool },
        /// Stop. This has no answer.
        11 => End,
        /// Permit rings to the connection of a mount that was made before.
        12 => PermitRings,
    }
}

encoded! {
    /// The answer of the keeper to a request.
    #[derive(Debug)]
    pub(crate) enum Answer {
        /// To the requests without another answer. The permission of rings comes as ancillary data: it holds until that is closed.
        1 => Done,
        2 => Failed { error: io::Error },
        /// The FUSE mount was made or adopted. If it was made, the device comes as ancillary data (`SCM_RIGHTS`), and the socket of
        /// fusermount3 if that waits.
        3 => Mounted {
            /// The mount ID in mountinfo; `None` without /proc.
            mount_id: Option<u32>,
            rings_are_permitted: bool,
        },
        4 => MountFailed { failure: MountFailure },
        /// The hidden mount was created. The device comes as ancillary data (`SCM_RIGHTS`).
        5 => Hidden { rings_are_permitted: bool },
        /// The front was mounted. The socket of the thread that reads ahead comes as ancillary data.
        6 => InFront {
            /// Its place.
            place: PlaceNumbers,
            /// The id of the thread that reads ahead, if there is one.
            thread: Option<u32>,
        },
        /// The thread that looks up names was started. Its socket comes as ancillary data.
        7 => Walking { thread: u32 },
        8 => Users { text: String },
        9 => Administrator { is_administrator: bool },
        10 => UnmountFailed { reason: UnmountReason },
    }
}

encoded! {
    /// A message from the keeper to its standby.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Note {
        /// It has mounted or adopted the mount at this place. The user does not know yet that it works.
        1 => Mounted { place: PlaceNumbers, is_front: bool },
        /// The user knows that the mount works.
        2 => Confirmed,
        /// It ends, and leaves nothing to be done.
        3 => Ended,
    }
}

impl Answer {
    pub(crate) fn failed(error: impl Into<io::Error>) -> Self {
        Self::Failed { error: error.into() }
    }

    /// The answer with the number of an error.
    pub(crate) fn refused(errno: i32) -> Self {
        Self::failed(io::Error::from_raw_os_error(errno))
    }

    /// The error of a failed request. Any other answer is `InvalidData`.
    pub(crate) fn into_error(self) -> io::Error {
        match self {
            Self::Failed { error } => error,
            _ => io::ErrorKind::InvalidData.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use floe_image::ByteRange;
    use floe_ipc::{Encoded, MESSAGE_BYTES_MAX};

    use super::*;
    use crate::{
        front_transfer::Record,
        launch_walk::{WalkAction, WalkStep, Walked},
    };

    /// Checks that messages survive their bytes, and that damaged bytes are no message.
    fn check<M: Encoded + Debug>(messages: impl IntoIterator<Item = M>) {
        for message in messages {
            let bytes = message.to_bytes();
            assert!(!bytes.is_empty() && bytes.len() <= MESSAGE_BYTES_MAX, "{message:?}");
            let found = M::from_bytes(&bytes).map(|found| format!("{found:?}"));
            assert_eq!(found, Some(format!("{message:?}")));
            for len in 0..bytes.len() {
                assert!(M::from_bytes(&bytes[..len]).is_none(), "{len} bytes of {message:?}");
            }
            let with_path = [&bytes[..], b"/etc"].concat();
            assert!(M::from_bytes(&with_path).is_none(), "{message:?} with a path");
        }
    }

    #[test]
    fn messages_survive_their_bytes() {
        use Request::*;
        let options = FrontOptions { is_kept: true, has_acls: false, cpus_are_short: true, has_direct_io: true };
        check([Adopt, MountFront { options }, ConfirmMount, SetReadahead, Walk, FindUsers, End, PermitRings]);
        check([false, true].map(|has_rings| Mount { has_rings }));
        check([false, true].map(|has_rings| MountHidden { has_rings }));
        check([false, true].map(|is_lazy| Unmount { is_lazy }));
        check([0, u32::MAX].map(|thread| IsAdministrator { thread }));

        let error = || io::Error::from_raw_os_error(libc::ENODEV);
        let other = || io::Error::other("a text, \u{fc}ber\u{fc}");
        check([Answer::Done, Answer::Failed { error: error() }, Answer::Failed { error: other() }]);
        check([None, Some(0), Some(u32::MAX)].map(|mount_id| Answer::Mounted { mount_id, rings_are_permitted: true }));
        check(
            [None, Some(7)]
                .map(|thread| Answer::InFront { place: std::array::from_fn(|index| u64::MAX >> index), thread }),
        );
        check([false, true].map(|rings_are_permitted| Answer::Hidden { rings_are_permitted }));
        check([false, true].map(|is_administrator| Answer::Administrator { is_administrator }));
        check([Answer::Walking { thread: 5 }, Answer::Users { text: String::new() }]);
        let failures = [
            MountFailure::Device { error: error() },
            MountFailure::NoFusermount,
            MountFailure::Refused { error: other() },
            MountFailure::Fusermount { message: "no".to_owned() },
            MountFailure::Front { refusal: "why".to_owned().into() },
        ];
        check(failures.map(|failure| Answer::MountFailed { failure }));
        let reasons = [
            UnmountReason::NotMounted,
            UnmountReason::NotFuse { file_system: "proc".to_owned() },
            UnmountReason::Busy,
            UnmountReason::Covered,
            UnmountReason::NoPermission { explanation: "root's".to_owned() },
            UnmountReason::Failed { error: error() },
        ];
        check(reasons.map(|reason| Answer::UnmountFailed { reason }));

        let place: PlaceNumbers = std::array::from_fn(|index| u64::MAX >> index);
        check([false, true].map(|is_front| Note::Mounted { place, is_front }));
        check([Note::Confirmed, Note::Ended]);

        let range = ByteRange::new(4096, 1 << 40);
        check([
            vec![],
            vec![
                Record::Copy { nid: u64::MAX, range, image_offset: 1 },
                Record::Read { nid: 7, range },
                Record::Urgency { is_urgent: true },
                Record::Copied { image_range: range },
            ],
        ]);
        let actions = [WalkAction::Look, WalkAction::ReadLink, WalkAction::List];
        check([actions.map(|action| WalkStep { path: b"usr/\xff".to_vec(), action }).to_vec()]);
        check([Walked { found: 1, missing: 2, failed: u32::MAX }]);
    }

    #[test]
    fn damaged_messages_are_refused() {
        fn check<M: Encoded + Debug>(bytes: &[u8]) {
            let found = M::from_bytes(bytes);
            assert!(found.is_none(), "{bytes:?}: {found:?}");
        }
        check::<Request>(&[]);
        check::<Request>(&[0]);
        check::<Request>(&[13]);
        check::<Request>(&[3, 2]);
        check::<Request>(b"/etc");
        check::<Answer>(&[8, 2, 0, 0, 0, 0xff, 0xff]);
        check::<Answer>(&[3, 2, 0, 0, 0, 0]);
        check::<Note>(&[1]);
        // A message of many steps, of which there are none.
        check::<Vec<WalkStep>>(&u32::MAX.to_le_bytes());
        check::<Vec<Record>>(&[1, 0, 0, 0, 9]);
    }

    #[test]
    fn long_texts_are_cut() {
        let bytes = Answer::Users { text: "\u{fc}".repeat(MESSAGE_BYTES_MAX) }.to_bytes();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX && Answer::from_bytes(&bytes).is_some());
    }
}
