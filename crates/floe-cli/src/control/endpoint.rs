//! The sockets of all mounts of a machine.

use std::{io, path::PathBuf, time::Duration};

use super::{
    Answer, Question,
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
    /// The sockets of this user's mounts, or of the mounts of all users. Some may be left over from killed programs.
    pub(crate) fn all(of_every_user: bool) -> Vec<Self> {
        let sockets = if of_every_user { socket_path::of_every_user() } else { socket_path::of_this_user() };
        sockets.into_iter().map(|(user_id, device, path)| Self { path, user_id, device }).collect()
    }

    /// Asks the mount.
    ///
    /// # Errors
    /// No program listens, or it takes longer than `patience`, refuses, or is another version of Floe.
    pub(crate) fn ask(&self, question: &Question, patience: Duration) -> io::Result<Answer> {
        let connection = connect(&self.path, self.user_id)?;
        match converse(&connection, question, patience)? {
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            answer => Ok(answer),
        }
    }
}
