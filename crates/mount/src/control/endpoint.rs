//! The sockets of all mounts of a machine.

use std::{collections::BTreeMap, io, os::unix::net::UnixStream, path::PathBuf, time::Duration};

use floe_keeper::MountTable;
use rustix::process::geteuid;

use super::{
    Answer, AnswerLimits, Question,
    client::{connect, converse},
    socket_path,
};

/// The socket of a mount.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    /// The user who mounted.
    pub user_id: u32,
    /// The device number of the mount.
    pub device: (u32, u32),
}

impl Endpoint {
    /// The directories for sockets by user: those of this user, or also those of all others that do not depend on their
    /// environment. The directories of users with mounts in the table are always among them. Does not access the directories of
    /// others, which may hang.
    pub fn directories(of_every_user: bool, table: &MountTable) -> BTreeMap<u32, Vec<PathBuf>> {
        let served = table.entries().iter().filter(|entry| entry.is_served());
        let mounting = served.map(|entry| entry.user_id.unwrap_or(0));
        let mut users = if of_every_user { socket_path::of_all_users(mounting) } else { BTreeMap::new() };
        let own = geteuid().as_raw();
        users.insert(own, socket_path::of_this_user(own));
        users
    }

    /// The sockets of a user's mounts. Some may be leftovers of killed programs, and another user may have created any
    /// file there. Only an answer to [`Endpoint::ask`] proves that a mount listens.
    pub fn of_user(user_id: u32, directories: &[PathBuf]) -> impl Iterator<Item = Self> {
        socket_path::sockets_in(directories, user_id).map(move |(device, path)| Self { path, user_id, device })
    }

    /// The possible sockets of a user's mount with this device number, best first.
    pub(super) fn of_mount(user_id: u32, device: (u32, u32)) -> impl Iterator<Item = Self> {
        socket_path::candidates(user_id, device).map(move |path| Self { path, user_id, device })
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
    pub fn ask(&self, question: &Question, limits: AnswerLimits) -> io::Result<Answer> {
        let connection = self.connect(limits.time)?;
        match converse(&connection, question, limits)? {
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            answer => Ok(answer),
        }
    }
}
