//! Questions to a mount and their answers: lines of JSON.

use std::{
    io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    handover::State,
    launch::{RecordingState, RecordingStep},
    options::ShownOption,
    status::Report,
};

/// A question to a mount.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// The state of the mount.
    Status,
    /// The options of the mount.
    Options,
    /// A change of options, each as `key=value`.
    Tune(Vec<String>),
    /// A step of a recording of what programs use of the mount.
    Record(RecordingStep),
    /// Whether the kernel's connection for the mount is alive.
    Connection,
    /// How the serving process was started.
    Invocation,
    /// The state and the descriptors of the mount, for a process that takes it over. More questions follow on the same
    /// connection: [`Question::Stop`], then [`Question::Serves`].
    HandOver,
    /// The other process is ready: this one stops taking requests.
    Stop,
    /// The other process serves the mount from now on.
    Serves,
}

/// The answer to a [`Question`].
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The state of the mount.
    Status(Box<Report>),
    /// The current options.
    Options(Vec<ShownOption>),
    /// The recording of what programs use of the mount.
    Recording(RecordingState),
    /// The kernel's connection for the mount.
    Connection {
        /// Whether it is alive. It outlives an unmount if the files are in use elsewhere.
        is_alive: bool,
    },
    /// How the serving process was started: the message carries a descriptor of a sealed file.
    Invocation,
    /// The state of a mount for its next process. The message carries descriptors: those of the device, then these.
    State {
        /// The state.
        state: Box<State>,
        /// Whether there is the socket of fusermount3.
        has_auto_unmount: bool,
        /// Whether there is the memory file with the state.
        has_state_file: bool,
    },
    /// The process has stopped taking requests.
    Stopped,
    /// A refusal with its reason: one line.
    Refused(String),
}

/// The maximum length of a question, in bytes.
pub(super) const QUESTION_BYTES_MAX: u64 = 64 << 10;

/// The maximum length of an answer, in bytes.
pub(super) const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The maximum number of descriptors with a line: `SCM_MAX_FD`.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Writes a question or an answer.
///
/// # Errors
/// The other end is closed, or does not read in time.
pub(crate) fn write_line(connection: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    (&mut &*connection).write_all(&line)
}

/// Writes an answer with descriptors, at most [`DESCRIPTORS_MAX`].
///
/// # Errors
/// As for [`write_line`].
pub(crate) fn write_line_with(
    connection: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    let sent = retry_on_intr(|| sendmsg(connection, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL))?;
    (&mut &*connection).write_all(line.get(sent..).unwrap_or_default())
}

/// Reads an answer and its descriptors.
///
/// # Errors
/// As for [`read_answer`].
pub(crate) fn read_answer_with_descriptors(connection: &UnixStream) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; 4096];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.bytes == 0 || line.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((answer_of(&line)?, descriptors))
}

/// Reads a line. The other end writes nothing more before it gets an answer.
///
/// # Errors
/// The other end does not write in time.
pub(super) fn read_line(connection: &UnixStream, len_max: u64) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(connection.take(len_max)).read_line(&mut line)?;
    Ok(line)
}

/// Reads a question.
///
/// # Errors
/// The other end is closed, does not write in time, or is another version of Floe.
pub(crate) fn read_question(connection: &UnixStream) -> io::Result<Question> {
    Ok(serde_json::from_str(&read_line(connection, QUESTION_BYTES_MAX)?)?)
}

/// Reads an answer.
///
/// # Errors
/// As for [`read_question`].
pub(crate) fn read_answer(connection: &UnixStream) -> io::Result<Answer> {
    answer_of(read_line(connection, ANSWER_BYTES_MAX)?.as_bytes())
}

/// The answer in a line.
///
/// # Errors
/// It is from another version of Floe.
pub(super) fn answer_of(line: &[u8]) -> io::Result<Answer> {
    serde_json::from_slice(line).map_err(|_| io::Error::other("the answer is from another version of Floe"))
}
