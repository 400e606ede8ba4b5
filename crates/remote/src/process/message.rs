//! The protocol between the two processes.
//!
//! The control socket carries the descriptors of the lanes with one byte, then alternating messages of JSON, each
//! preceded by its length. Each lane carries a [`Question`] and, unless it is a hint, a [`Reply`] with its bytes,
//! alternately.
//!
//! A process that fetches several images gets a [`Wanted`] for each, with a connection that serves as its control socket. It sends
//! the answer to that by itself, and makes the lanes.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use floe_remote_cache::{FetchError, FetchFault};
use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{ImageAbout, ImageCounts, ImageOptions};

/// The number of lanes, which limits the number of waiting reads.
pub(crate) const LANE_COUNT: usize = 24;

/// The maximum number of bytes of one read, and the maximum length of a message.
pub(crate) const READ_BYTES_MAX: usize = 8 << 20;
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The size of a question and of the head of a reply, in bytes.
const QUESTION_BYTES: usize = 24;
const REPLY_BYTES: usize = 8;

/// A request over the control socket.
#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first request, sent once: open this image.
    Open { location: String, options: ImageOptions },
    /// The counters so far.
    Counts,
    /// Another lane, of a process that fetches several images. The answer is one byte, with the descriptor.
    Lane,
}

/// A request to a process that fetches several images: open this one for the process at the other end of the connection beside it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) location: String,
    pub(crate) options: ImageOptions,
}

/// An answer over the control socket.
#[derive(Serialize, Deserialize)]
pub(crate) enum Report {
    Opened(ImageAbout),
    Counts(ImageCounts),
    Failed(Failure),
}

/// An error in serialised form.
#[derive(Serialize, Deserialize)]
pub(crate) struct Failure {
    kind: FailureKind,
    message: String,
}

#[derive(Serialize, Deserialize)]
enum FailureKind {
    Fetch(FetchFault),
    InvalidInput,
    Interrupted,
    Other,
}

/// A request over a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    pub(crate) verb: Verb,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Read,
    TryRead,
    /// A hint without a reply.
    WillNeed,
    /// Another hint without a reply.
    DontNeed,
}

impl Verb {
    /// All verbs, by their numbers in the protocol.
    const ALL: [Self; 4] = [Self::Read, Self::TryRead, Self::WillNeed, Self::DontNeed];
}

/// The head of a reply; `len` bytes follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Bytes(usize),
    WouldBlock,
    /// The error follows, as a [`Failure`] in JSON.
    Failed(usize),
}

impl Question {
    pub(crate) fn to_bytes(self) -> [u8; QUESTION_BYTES] {
        let mut bytes = [0; QUESTION_BYTES];
        bytes[0] = self.verb as u8;
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The next question; `None` after the other process has ended.
    pub(crate) fn receive(lane: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; QUESTION_BYTES];
        match (&*lane).read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let verb = *Verb::ALL.get(usize::from(bytes[0])).ok_or(io::ErrorKind::InvalidData)?;
        let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Ok(Some(Self { verb, offset: number(8), len: number(16) }))
    }
}

impl Reply {
    pub(crate) fn to_bytes(self) -> [u8; REPLY_BYTES] {
        let (kind, len) = match self {
            Self::Bytes(len) => (0, len),
            Self::WouldBlock => (1, 0),
            Self::Failed(len) => (2, len),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        bytes
    }

    pub(crate) fn receive(lane: &File) -> io::Result<Self> {
        let mut bytes = [0; REPLY_BYTES];
        (&*lane).read_exact(&mut bytes)?;
        let len = bytes[4..].try_into().map_or(0, u32::from_le_bytes) as usize;
        match bytes[0] {
            0 if len <= READ_BYTES_MAX => Ok(Self::Bytes(len)),
            1 => Ok(Self::WouldBlock),
            2 if len <= MESSAGE_BYTES_MAX => Ok(Self::Failed(len)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Failure {
    pub(crate) fn of(error: &io::Error) -> Self {
        let kind = match (FetchError::inside(error), error.kind()) {
            (Some(error), _) => FailureKind::Fetch(error.fault()),
            (None, io::ErrorKind::InvalidInput) => FailureKind::InvalidInput,
            (None, io::ErrorKind::Interrupted) => FailureKind::Interrupted,
            (None, _) => FailureKind::Other,
        };
        Self { kind, message: error.to_string() }
    }

    pub(crate) fn into_error(self) -> io::Error {
        let kind = match self.kind {
            FailureKind::Fetch(fault) => return FetchError::new(fault, self.message).into(),
            FailureKind::InvalidInput => io::ErrorKind::InvalidInput,
            FailureKind::Interrupted => io::ErrorKind::Interrupted,
            FailureKind::Other => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.message)
    }
}

/// Sends bytes with descriptors beside them.
pub(crate) fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LANE_COUNT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// Receives at most this many bytes with the descriptors beside them. There are no bytes if the other process has ended.
pub(crate) fn receive_with(socket: impl AsFd, bytes_max: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; bytes_max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LANE_COUNT))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

/// Sends a message over the control socket.
pub(crate) fn send(control: &File, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let len = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    (&*control).write_all(&bytes)
}

/// The next message; `None` after the other process has ended.
pub(crate) fn receive<Message: DeserializeOwned>(control: &File) -> io::Result<Option<Message>> {
    let mut len = [0; 4];
    match (&*control).read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    (&*control).read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}
