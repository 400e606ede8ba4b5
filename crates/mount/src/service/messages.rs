//! The messages between the broker and its domains.

use floe_ipc::{
    encoded,
    protocol::{MountRequest, RefusalKind},
};
use floe_keeper::PlaceNumbers;

use super::users::DomainUser;

/// The version of these messages. Those of adoption, [`Order::Adopt`] and [`Report::Adopting`], are the same in all versions.
pub(super) const VERSION: u32 = 1;

encoded! {
    /// A message to a domain.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) enum Order {
        /// The first one of the broker that starts it. Beside it comes a bound socket, at which the domain waits for the next broker,
        /// unless there is none.
        1 => Begin {
            /// The options of the service, in the notation of `-o`.
            options: String,
            /// Another user, whose process it becomes.
            user: Option<DomainUser>,
        },
        /// Serve a mount. Beside the message come the socket to its keeper and the descriptors of the mount.
        2 => Attach { attachment: Attachment },
        /// End: the domain has no mounts any more.
        3 => End,
        /// The first one of a broker that takes the place of another.
        4 => Adopt {
            /// [`VERSION`].
            version: u32,
        },
        /// The keeper of a mount is at the other end of the socket beside the message.
        5 => Keeper {
            /// The number of the mount.
            number: u64,
        },
        /// Answer questions about a mount over the connection beside the message, whose other end somebody has who may ask
        /// everything.
        6 => Converse {
            /// The number of the mount.
            number: u64,
        },
    }
}

encoded! {
    /// A mount for a domain.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) struct Attachment {
        /// The number of the mount.
        pub number: u64,
        /// What its client has requested.
        pub request: MountRequest,
        /// The directory of the mount.
        pub directory: Vec<u8>,
        /// Its place.
        pub place: PlaceNumbers,
        /// The format of the image, if another process has served it before; otherwise empty.
        pub format: String,
    }
}

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
        /// The answer to [`Order::Adopt`].
        6 => Adopting {
            /// [`VERSION`].
            version: u32,
            /// The number of mounts. As many messages [`Report::Kept`] follow.
            count: u32,
        },
        /// A mount of the domain. Beside the message come its descriptors.
        7 => Kept {
            /// Its number.
            number: u64,
            /// The format of its image; empty if it is a new one that is still being opened.
            format: String,
            /// Whether it is served already.
            is_served: bool,
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
            request: MountRequest {
                image: b"/a".to_vec(),
                devices: vec![b"/b\xff".to_vec()],
                options: "nodev".to_owned(),
                target: floe_ipc::protocol::MountTarget::Directory,
            },
            directory: b"/mnt".to_vec(),
            place: std::array::from_fn(|index| u64::MAX >> index),
            format: "EROFS".to_owned(),
        };
        for order in [
            Order::Begin { options: "cache=1M".to_owned(), user: None },
            Order::Begin {
                options: String::new(),
                user: Some(DomainUser { uid: 7, gid: 8, memory_bytes: 1 << 30, may_be_real_time: true }),
            },
            Order::Attach { attachment },
            Order::End,
            Order::Adopt { version: VERSION },
            Order::Keeper { number: 3 },
            Order::Converse { number: 3 },
        ] {
            check(&order);
        }
        let text = || "\u{fc}".to_owned();
        for report in [
            Report::Ready,
            Report::Attached { number: 1, format: text() },
            Report::Failed { number: u64::MAX, kind: RefusalKind::BadImage, message: text() },
            Report::Remark { number: 0, text: text() },
            Report::Ended { number: 1, is_released: false },
            Report::Adopting { version: VERSION, count: 2 },
            Report::Kept { number: 1, format: text(), is_served: true },
        ] {
            check(&report);
        }
    }
}
