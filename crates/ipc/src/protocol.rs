//! The messages between the service and its clients, over a Unix socket that keeps their boundaries (`SOCK_SEQPACKET`).
//!
//! A client sends [`Request::Hello`] first. Each request has one answer. The service opens nothing by a client's path: the client
//! opens the image, its extra devices and the directory with its own rights, and sends their descriptors.

use crate::encoded;

/// The version of the messages. Greetings are the same in all versions.
pub const VERSION: u32 = 1;

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
        /// Mount an image. Beside the message come the descriptors of the image, of its extra devices, and of the directory, which is
        /// opened with `O_PATH`.
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
    }
}

encoded! {
    /// What to mount.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct MountRequest {
        /// The path of the image, for messages and the mount table.
        pub image: Vec<u8>,
        /// The paths of the extra devices, for messages, in the order of their descriptors.
        pub devices: Vec<Vec<u8>>,
        /// The options, in the notation of `-o`.
        pub options: String,
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
        let mount =
            MountRequest { image: b"/a\xff".to_vec(), devices: vec![b"b".to_vec(), Vec::new()], options: "ro".into() };
        for request in [
            Request::Hello { version: VERSION },
            Request::Mount { mount },
            Request::Unmount { device: [0, u32::MAX], is_lazy: true },
            Request::List { after: u64::MAX },
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
        };
        for answer in [
            Answer::Hello { version: VERSION, program: "0.1.0".to_owned() },
            Answer::Mounted { mount: mount.clone(), remarks: vec!["\u{fc}".to_owned()] },
            Answer::Unmounted { is_released: true },
            Answer::Listed { mounts: vec![mount.clone(), mount], has_more: true },
            Answer::Refused { kind: RefusalKind::Busy, message: "it is in use".to_owned() },
        ] {
            check(&answer);
        }
    }

    #[test]
    fn the_longest_request_fits() {
        let path = vec![b'a'; PATH_BYTES_MAX];
        let options = "o".repeat(crate::TEXT_BYTES_MAX);
        let mount = MountRequest { image: path.clone(), devices: vec![path; 6], options };
        let request = Request::Mount { mount };
        let bytes = request.to_bytes();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Request::from_bytes(&bytes), Some(request));
    }
}
