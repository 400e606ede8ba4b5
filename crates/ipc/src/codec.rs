//! The encoding of messages.
//!
//! Numbers are little-endian, text and lists follow their length, and a variant follows its tag. Descriptors are no part of a
//! message: they travel beside it. An unconfined process decodes what a confined process or a client sends, which an attacker
//! may control, so a damaged message is an error, and nothing is allocated for bytes that the message does not have.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use floe_image::ByteRange;
use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recv, recvmsg, sendmsg,
    },
};

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 40 << 10;

/// The longest text in a message, in bytes. The rest of a longer one is left out.
pub const TEXT_BYTES_MAX: usize = 8 << 10;

/// The maximum number of descriptors beside a message.
pub const DESCRIPTORS_MAX: usize = 64;

/// A message, or a part of one.
pub trait Encoded: Sized {
    /// Appends it to a message.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Takes it from the beginning of `bytes`. Returns `None` if they are damaged.
    fn read(bytes: &mut &[u8]) -> Option<Self>;

    /// The message.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// The inverse of [`Encoded::to_bytes`]. Returns `None` if the message is damaged or has more bytes.
    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let message = Self::read(&mut bytes)?;
        bytes.is_empty().then_some(message)
    }
}

/// Declares a struct, or an enum with the tags of its variants, that is [`Encoded`].
#[macro_export]
macro_rules! encoded {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $(
                $(#[$variant_attribute:meta])*
                $tag:literal => $variant:ident $({ $($(#[$field_attribute:meta])* $field:ident: $type:ty),* $(,)? })?
            ),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant $({ $($(#[$field_attribute])* $field: $type),* })?),*
        }

        impl $crate::Encoded for $name {
            fn write(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        bytes.push($tag);
                        $($($crate::Encoded::write($field, bytes);)*)?
                    })*
                }
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                match <u8 as $crate::Encoded>::read(bytes)? {
                    $($tag => Some(Self::$variant $({ $($field: $crate::Encoded::read(bytes)?),* })?),)*
                    _ => None,
                }
            }
        }
    };
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$field_attribute])* $field_visibility $field: $type),*
        }

        impl $crate::Encoded for $name {
            fn write(&self, bytes: &mut Vec<u8>) {
                $($crate::Encoded::write(&self.$field, bytes);)*
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::Encoded::read(bytes)?),* })
            }
        }
    };
}
/// Sends a message, with at most [`DESCRIPTORS_MAX`] descriptors beside it.
///
/// # Errors
/// The other end is closed, or `flags` forbid to wait for room.
pub fn send(
    socket: impl AsFd,
    message: &impl Encoded,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let bytes = message.to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let send = || sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, flags | SendFlags::NOSIGNAL);
    retry_on_intr(send).map(drop)
}

/// Receives a message and the descriptors beside it. Returns `None` if the other end is closed.
///
/// # Errors
/// Nothing can be received, or the message is damaged or too long, or has too many descriptors ([`io::ErrorKind::InvalidData`]).
pub fn receive<M: Encoded>(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags))?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    match received.bytes {
        0 => Ok(None),
        _ if received.flags.contains(ReturnFlags::TRUNC) => Err(io::ErrorKind::InvalidData.into()),
        len => match M::from_bytes(&bytes[..len]) {
            Some(message) => Ok(Some((message, descriptors))),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
    }
}

/// Receives a message without the descriptors beside it, which the kernel drops: closing a descriptor can take as long as its
/// sender likes. Returns `None` if the other end is closed.
///
/// # Errors
/// As for [`receive`].
pub fn receive_alone<M: Encoded>(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<M>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let (len, full_len) = retry_on_intr(|| recv(&socket, &mut bytes[..], flags | RecvFlags::TRUNC))?;
    match full_len {
        0 => Ok(None),
        _ => bytes
            .get(..full_len)
            .filter(|_| len == full_len)
            .and_then(M::from_bytes)
            .map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

macro_rules! encoded_numbers {
    ($($type:ty),*) => {
        $(impl Encoded for $type {
            fn write(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*number))
            }
        })*
    };
}
encoded_numbers!(u8, u32, i32, u64);

impl Encoded for bool {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push((*self).into());
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        match u8::read(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Encoded> Encoded for Option<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.is_some().write(bytes);
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        if bool::read(bytes)? { T::read(bytes).map(Some) } else { Some(None) }
    }
}

impl<T: Encoded> Encoded for Vec<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u32).write(bytes);
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let count = u32::read(bytes)?;
        (0..count).map(|_| T::read(bytes)).collect()
    }
}

impl<T: Encoded, const COUNT: usize> Encoded for [T; COUNT] {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let values: Option<Vec<T>> = (0..COUNT).map(|_| T::read(bytes)).collect();
        values?.try_into().ok()
    }
}

impl Encoded for String {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.as_bytes()[..self.floor_char_boundary(TEXT_BYTES_MAX)].to_vec().write(bytes);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Vec::read(bytes)?).ok()
    }
}

/// The number of an error of the operating system, or the text of another one.
impl Encoded for io::Error {
    fn write(&self, bytes: &mut Vec<u8>) {
        let number = self.raw_os_error();
        number.write(bytes);
        if number.is_none() {
            self.to_string().write(bytes);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(match Option::read(bytes)? {
            Some(number) => Self::from_raw_os_error(number),
            None => Self::other(String::read(bytes)?),
        })
    }
}

impl Encoded for ByteRange {
    fn write(&self, bytes: &mut Vec<u8>) {
        [self.offset(), self.len()].write(bytes);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let [offset, len] = <[u64; 2]>::read(bytes)?;
        Some(Self::new(offset, len))
    }
}
