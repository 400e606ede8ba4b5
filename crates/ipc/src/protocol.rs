//! The messages between the service and its clients, over a Unix socket that keeps their boundaries (`SOCK_SEQPACKET`).
//!
//! A client sends [`Request::Hello`] first. Each request has one answer. The service opens no file by a client's path: the client
//! opens the image, its extra devices and the directory with its own rights, and sends their descriptors. A client sees and changes
//! only mounts of its own user and user namespace, unless it is the user who runs the service.

use crate::encoded;

/// The version of the messages. Greetings are the same in all versions.
pub const VERSION: u32 = 2;

/// The maximum number of extra devices of an image.
pub const DEVICES_MAX: usize = 48;

/// The maximum length of a path in a message, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

encoded! {
    /// A request of a client.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Request {
        /// The version of the client's messages.
        1 => Hello {
            /// [`VERSION`].
            version: u32,
        },
        /// Mount an image. Beside the message come the descriptors of the image, unless that is remote, of its extra devices, of the
        /// recorded launch if the options name one (`profile=FILE`), then possibly of a connection to a process of another user that looks
        /// up its names, and of the target if it has one.
        2 => Mount {
            /// The image and the options.
            mount: MountRequest,
        },
        /// Unmount the mount whose files have a device number.
        3 => Unmount {
            /// The device number, as the mount table has it.
            device: [u32; 2],
            /// Whether a mount in use disappears from the tree at once, and ends with its last use.
            is_lazy: bool,
        },
        /// List mounts, in the order of their numbers.
        4 => List {
            /// The number of the last mount of the list so far; 0 at its beginning.
            after: u64,
        },
        /// Tell what the service offers this client.
        5 => Offer,
        /// Connect to the control socket of the mount whose files have a device number. Beside the answer comes the descriptor of the
        /// connection.
        6 => Control {
            /// The device number, as the mount table has it.
            device: [u32; 2],
        },
        /// Replace the program of the service by the one whose descriptor, opened with `O_PATH`, comes beside the message. Only the user
        /// who runs the service may. The new program answers.
        7 => Upgrade,
    }
}

encoded! {
    /// What to mount.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct MountRequest {
        /// The path of the image, for messages and the mount table, or its URL.
        pub image: Vec<u8>,
        /// The paths of the extra devices, for messages, in the order of their descriptors.
        pub devices: Vec<Vec<u8>>,
        /// The options, in the notation of `-o`.
        pub options: String,
        /// Where to.
        pub target: MountTarget,
    }
}

encoded! {
    /// Where to mount.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum MountTarget {
        /// On a directory. Its descriptor is opened with `O_PATH`.
        1 => Directory,
        /// The client has mounted. The descriptor is that of the connection to the kernel (`/dev/fuse`), which nobody has read.
        2 => Connection {
            /// The directory, for messages.
            directory: Vec<u8>,
            /// The device number of the mount's files, by which the client finds the mount in later requests.
            device: [u32; 2],
        },
        /// On no directory: beside the answer comes the descriptor of the mount, the kernel's EROFS in front, which the client attaches
        /// (move_mount(2)). It has no descriptor beside the request. Only if the service offers fronts but no mounts.
        3 => Detached {
            /// The directory, for messages.
            directory: Vec<u8>,
        },
    }
}

encoded! {
    /// What the service offers a client.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ServiceOffer {
        /// Whether it also serves users other than the one who runs it.
        pub users: bool,
        /// Whether it mounts the kernel's EROFS in front for this client.
        pub fronts: bool,
        /// Whether it mounts on directories of this client ([`MountTarget::Directory`]). It does not in mount namespaces that belong
        /// to users, who have all rights over mounts there: such a client mounts by itself ([`MountTarget::Connection`], or
        /// [`MountTarget::Detached`]).
        pub mounts: bool,
    }
}

encoded! {
    /// An answer of the service.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Answer {
        /// The service's own version.
        1 => Hello {
            /// [`VERSION`].
            version: u32,
            /// The version of the program.
            program: String,
        },
        /// The image is mounted.
        2 => Mounted {
            /// The mount.
            mount: ServedMount,
            /// The requests that could not be met exactly, as messages of one line.
            remarks: Vec<String>,
        },
        /// It is unmounted.
        3 => Unmounted {
            /// Whether the image is closed, too. It is not while its source is stuck.
            is_released: bool,
        },
        /// A part of the list.
        4 => Listed {
            /// Mounts.
            mounts: Vec<ServedMount>,
            /// Whether more follow after the last one.
            has_more: bool,
        },
        /// The request is refused.
        5 => Refused {
            /// The kind of reason.
            kind: RefusalKind,
            /// The reason, in one line.
            message: String,
        },
        /// What the service offers.
        6 => Offered {
            /// The offer.
            offer: ServiceOffer,
        },
        /// The connection is the descriptor beside this message.
        7 => Connected,
        /// The program is replaced, and so are the processes that read images.
        8 => Upgraded {
            /// The version of the new program.
            program: String,
            /// What stays as it was, as messages of one line.
            remarks: Vec<String>,
        },
    }
}

encoded! {
    /// A mount of the service.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ServedMount {
        /// Its number, which the service gives once.
        pub number: u64,
        /// The path of the image.
        pub image: Vec<u8>,
        /// The directory, as it was when the mount was made.
        pub directory: Vec<u8>,
        /// The format of the image.
        pub format: String,
        /// The device number of its files.
        pub device: [u32; 2],
        /// The process that reads the image; 0 while another one is started.
        pub process: u32,
        /// The user who has mounted it.
        pub user: u32,
    }
}

encoded! {
    /// The kind of reason for a refusal.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum RefusalKind {
        /// The request is wrong.
        1 => Usage,
        /// A reason outside the image.
        2 => Failed,
        /// The image is broken or uses unsupported features.
        3 => BadImage,
        /// The service has no such mount.
        4 => UnknownMount,
        /// The mount is in use.
        5 => Busy,
        /// The service does not offer this to the client, or a limit of the client's user is reached: the client may have other ways.
        6 => NotOffered,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::{Encoded, MESSAGE_BYTES_MAX};

    fn check<M: Encoded + PartialEq + Debug>(message: &M) {
        let bytes = message.to_bytes();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{message:?}");
        assert_eq!(M::from_bytes(&bytes).as_ref(), Some(message));
        for len in 0..bytes.len() {
            assert_eq!(M::from_bytes(&bytes[..len]), None, "{len} bytes of {message:?}");
        }
        assert_eq!(M::from_bytes(&[&bytes[..], &[0]].concat()), None, "{message:?} with another byte");
    }

    #[test]
    fn messages_survive_their_bytes() {
        let (image, devices) = (b"/a\xff".to_vec(), vec![b"b".to_vec(), Vec::new()]);
        let mount = MountRequest { image, devices, options: "ro".into(), target: MountTarget::Directory };
        let target = MountTarget::Connection { directory: b"/mnt".to_vec(), device: [0, 57] };
        for request in [
            Request::Hello { version: VERSION },
            Request::Mount { mount: mount.clone() },
            Request::Mount { mount: MountRequest { target, ..mount.clone() } },
            Request::Mount {
                mount: MountRequest { target: MountTarget::Detached { directory: b"/mnt".to_vec() }, ..mount },
            },
            Request::Unmount { device: [0, u32::MAX], is_lazy: true },
            Request::List { after: u64::MAX },
            Request::Offer,
            Request::Control { device: [0, 57] },
            Request::Upgrade,
        ] {
            check(&request);
        }
        let mount = ServedMount {
            number: 7,
            image: b"/a".to_vec(),
            directory: b"/mnt\n".to_vec(),
            format: "EROFS".to_owned(),
            device: [0, 57],
            process: 4242,
            user: 1000,
        };
        for answer in [
            Answer::Hello { version: VERSION, program: "0.1.0".to_owned() },
            Answer::Mounted { mount: mount.clone(), remarks: vec!["\u{fc}".to_owned()] },
            Answer::Unmounted { is_released: true },
            Answer::Listed { mounts: vec![mount.clone(), mount], has_more: true },
            Answer::Refused { kind: RefusalKind::Busy, message: "it is in use".to_owned() },
            Answer::Offered { offer: ServiceOffer { users: true, fronts: false, mounts: true } },
            Answer::Connected,
            Answer::Upgraded { program: "0.2.0".to_owned(), remarks: vec!["/mnt".to_owned()] },
        ] {
            check(&answer);
        }
    }

    #[test]
    fn the_longest_request_fits() {
        let path = vec![b'a'; PATH_BYTES_MAX];
        let options = "o".repeat(crate::TEXT_BYTES_MAX);
        let target = MountTarget::Connection { directory: path.clone(), device: [0, 57] };
        let mount = MountRequest { image: path.clone(), devices: vec![path; 5], options, target };
        let request = Request::Mount { mount };
        let bytes = request.to_bytes();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Request::from_bytes(&bytes), Some(request));
    }
}
