//! The sockets of all mounts of a machine.

use std::{io, os::unix::net::UnixStream, path::PathBuf, time::Duration};

use super::{
    Answer, AnswerLimits, Question,
    client::{connect, converse},
    socket_path,
};

/// The socket of a mount.
#[derive(Debug)]
pub(crate) struct Endpoint {
    path: PathBuf,
    /// The user who mounted.
    pub(crate) user_id: u32,
    /// The device number of the mount.
    pub(crate) device: (u32, u32),
}

impl Endpoint {
    /// The sockets of a user's mounts. Some may be leftovers of killed programs, and another user may have created any
    /// file there. Only an answer to [`Endpoint::ask`] proves that a mount listens.
    pub(crate) fn of_user(user_id: u32) -> impl Iterator<Item = Self> {
        socket_path::of_user(user_id).map(move |(device, path)| Self { path, user_id, device })
    }

    /// Connects to the process that listens.
    ///
    /// # Errors
    /// No program of the user listens, or it takes longer than `patience` to accept.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        connect(&self.path, self.user_id, patience)
    }

    /// Asks the mount.
    ///
    /// # Errors
    /// No program of the user listens, or it exceeds the limits, refuses, or is another version of Floe.
    pub(crate) fn ask(&self, question: &Question, limits: AnswerLimits) -> io::Result<Answer> {
        let connection = self.connect(limits.time)?;
        match converse(&connection, question, limits)? {
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            answer => Ok(answer),
        }
    }
}
