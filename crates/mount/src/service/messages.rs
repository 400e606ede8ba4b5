//! The messages between the broker and its domains.

use floe_ipc::{
    encoded,
    protocol::{MountRequest, RefusalKind},
};
use floe_keeper::PlaceNumbers;

use super::users::DomainUser;

/// The version of these messages. Those of adoption, [`Order::Adopt`], [`Report::Adopting`] and [`Report::Kept`], are the same in all
/// versions.
const VERSION: u32 = 5;

/// The version of the messages of this process.
pub(super) fn version() -> u32 {
    // A test gives the program another name.
    let is_another =
        || std::env::current_exe().is_ok_and(|program| program.as_os_str().as_encoded_bytes().ends_with(b".another"));
    if cfg!(debug_assertions) && is_another() { VERSION + 1 } else { VERSION }
}

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
            /// Whether it serves one mount, over io_uring.
            has_rings: bool,
        },
        /// Serve a mount. Beside the message come the socket to its keeper and the descriptors of the mount.
        2 => Attach { attachment: Attachment },
        /// End: the domain has no mounts any more.
        3 => End,
        /// The first one of a broker that takes the place of another.
        4 => Adopt {
            /// The [`version`] of its messages.
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
        /// Render the metadata of an image for its front. Beside the message come the descriptors of the image and of an empty file.
        7 => Render { rendering: Rendering },
        /// A front is mounted: its record is beside the message.
        8 => Record {
            /// The number of the mount.
            number: u64,
        },
        /// The process that fetches a remote image was lost: a connection to another one is beside the message.
        9 => Source {
            /// The number of the mount.
            number: u64,
        },
        /// Hand a mount over to the process at the other end of the connection beside the message, which is ready to serve it.
        10 => HandOver {
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
        /// Its front, if that is the kernel's EROFS. The connection is then that of the hidden mount.
        pub front: Option<AttachedFront>,
        /// Whether another process serves the mount until it is told to stop, over the connection beside the message, which comes
        /// after those of the front.
        pub is_taken: bool,
        /// Whether the launch that the options name (`profile=FILE`) is to be replayed. It is in the file beside the message, after those.
        pub has_profile: bool,
        /// Whether a process of the user looks up the names of that launch, at the other end of the connection beside the message: the
        /// last one before the descriptors of the mount.
        pub has_walk: bool,
        /// Why it has none, in one line.
        pub obstacle: String,
    }
}

encoded! {
    /// The front of a mount. The descriptor of the kept metadata follows those of the devices.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) struct AttachedFront {
        /// The thread that reads ahead there, if the front is mounted. The socket to it is beside the message, after that of the keeper.
        pub thread: Option<u32>,
        /// The terms of the connection, if the broker has negotiated them.
        pub terms: Option<NegotiatedTerms>,
    }
}

encoded! {
    /// The terms of a connection to the kernel.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct NegotiatedTerms {
        /// The minor version of the protocol.
        pub minor: u32,
        /// The features in use.
        pub features: u64,
    }
}

encoded! {
    /// Metadata of a front to be rendered.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(super) struct Rendering {
        /// The number of the rendering.
        pub number: u64,
        /// The request of its mount.
        pub request: MountRequest,
        /// The identity of the image with these options.
        pub identity: Vec<u8>,
        /// What the kernel may decode in the image; `None` if it reads nothing there by itself.
        pub algorithms: Option<u32>,
        /// The only user whom the root directory is to admit.
        pub only_user: Option<u32>,
        /// When it is rendered.
        pub haste: Haste,
    }
}

encoded! {
    /// When metadata is rendered.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) enum Haste {
        /// A mount waits for it.
        1 => Now,
        /// A mount waits for it, if that takes no longer than a mount.
        2 => NowIfQuick,
        /// For a later mount, at low priority.
        3 => Later,
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
            /// The [`version`] of its messages.
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
        /// The metadata of a front is rendered, or will not be.
        8 => Rendered {
            /// The number of the rendering.
            number: u64,
            /// Whether it is.
            is_done: bool,
        },
        /// The process that fetches a remote image was lost, and reads wait for another one.
        9 => SourceLost {
            /// The number of the mount.
            number: u64,
        },
        /// A mount is handed over, or the other process has failed.
        10 => HandedOver {
            /// Its number.
            number: u64,
            /// Whether the other process serves it. Otherwise this one does, as before.
            is_given: bool,
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
            front: Some(AttachedFront {
                thread: Some(7),
                terms: Some(NegotiatedTerms { minor: 45, features: 1 << 42 }),
            }),
            is_taken: true,
            has_profile: true,
            has_walk: false,
            obstacle: "none".to_owned(),
        };
        let rendering = |haste| Rendering {
            number: 4,
            request: MountRequest {
                image: b"/a".to_vec(),
                devices: Vec::new(),
                options: String::new(),
                target: floe_ipc::protocol::MountTarget::Directory,
            },
            identity: vec![7; 32],
            algorithms: Some(9),
            only_user: Some(65_533),
            haste,
        };
        for haste in [Haste::Now, Haste::NowIfQuick, Haste::Later] {
            check(&Order::Render { rendering: rendering(haste) });
        }
        for order in [
            Order::Begin { options: "cache=1M".to_owned(), user: None, has_rings: true },
            Order::Begin {
                options: String::new(),
                user: Some(DomainUser { uid: 7, gid: 8, memory_bytes: 1 << 30, may_be_real_time: true }),
                has_rings: false,
            },
            Order::Attach { attachment },
            Order::End,
            Order::Adopt { version: VERSION },
            Order::Keeper { number: 3 },
            Order::Converse { number: 3 },
            Order::Record { number: 3 },
            Order::Source { number: 3 },
            Order::HandOver { number: 3 },
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
            Report::Rendered { number: 2, is_done: true },
            Report::SourceLost { number: 2 },
            Report::HandedOver { number: 2, is_given: true },
        ] {
            check(&report);
        }
    }
}
