//! The messages between the broker and its domains.

use floe_ipc::{encoded, protocol::RefusalKind};
use floe_keeper::PlaceNumbers;

encoded! {
    /// A message to a domain.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) enum Order {
        /// The first one.
        1 => Begin {
            /// The options of the service, in the notation of `-o`.
            options: String,
        },
        /// Serve a mount. Beside the message come the descriptors of `/dev/fuse`, of the memory file with the state of the mount, of
        /// the socket to its keeper, of its listening control socket, of the image, and of its extra devices.
        2 => Attach { attachment: Attachment },
        /// End: the domain has no mounts any more.
        3 => End,
    }
}

encoded! {
    /// A mount for a domain.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) struct Attachment {
        /// The number of the mount.
        pub number: u64,
        /// The path of the image.
        pub image: Vec<u8>,
        /// The paths of the extra devices.
        pub devices: Vec<Vec<u8>>,
        /// The directory of the mount.
        pub directory: Vec<u8>,
        /// Its options, in the notation of `-o`.
        pub options: String,
        /// Its place.
        pub place: PlaceNumbers,
        /// Whether another process has served it before.
        pub is_continued: bool,
    }
}

/// The number of descriptors of an [`Attachment`] without those of the devices.
pub(super) const ATTACHMENT_DESCRIPTORS: usize = 5;

encoded! {
    /// A message of a domain.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) enum Report {
        /// It is confined, and takes mounts.
        1 => Ready,
        /// It serves a mount.
        2 => Attached {
            /// Its number.
            number: u64,
            /// The format of the image.
            format: String,
        },
        /// It does not serve a mount.
        3 => Failed {
            /// Its number.
            number: u64,
            /// The kind of reason.
            kind: RefusalKind,
            /// The reason, in one line.
            message: String,
        },
        /// Something about a mount for its user.
        4 => Remark {
            /// Its number.
            number: u64,
            /// One line.
            text: String,
        },
        /// A mount has ended.
        5 => Ended {
            /// Its number.
            number: u64,
            /// Whether the image is closed. It is not while its source is stuck.
            is_released: bool,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use floe_ipc::Encoded;

    use super::*;

    fn check<M: Encoded + PartialEq + Debug>(message: &M) {
        let bytes = message.to_bytes();
        assert_eq!(M::from_bytes(&bytes).as_ref(), Some(message));
        for len in 0..bytes.len() {
            assert_eq!(M::from_bytes(&bytes[..len]), None, "{len} bytes of {message:?}");
        }
    }

    #[test]
    fn messages_survive_their_bytes() {
        let attachment = Attachment {
            number: 3,
            image: b"/a".to_vec(),
            devices: vec![b"/b\xff".to_vec()],
            directory: b"/mnt".to_vec(),
            options: "nodev".to_owned(),
            place: std::array::from_fn(|index| u64::MAX >> index),
            is_continued: true,
        };
        for order in [Order::Begin { options: "cache=1M".to_owned() }, Order::Attach { attachment }, Order::End] {
            check(&order);
        }
        let text = || "\u{fc}".to_owned();
        for report in [
            Report::Ready,
            Report::Attached { number: 1, format: text() },
            Report::Failed { number: u64::MAX, kind: RefusalKind::BadImage, message: text() },
            Report::Remark { number: 0, text: text() },
            Report::Ended { number: 1, is_released: false },
        ] {
            check(&report);
        }
    }
}
