//! The client side of the control socket.

use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use floe_fuse::MountTable;
use rustix::{net::sockopt::socket_peercred, process::geteuid};

use super::{Answer, Question, read_answer, socket_path, write_line};
use crate::fail::Fail;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A mount of Floe, as a client addresses it.
#[derive(Debug)]
pub(crate) struct Mounted {
    directory: PathBuf,
    user_id: u32,
    device: (u32, u32),
}

impl Mounted {
    /// Finds the mount on a directory, without accessing the directory.
    ///
    /// # Errors
    /// Nothing is mounted there, the mount is not Floe's, or it belongs to another user.
    pub(crate) fn find(directory: &Path) -> Result<Self, Fail> {
        let shown = directory.display();
        let table =
            MountTable::read().map_err(|error| Fail::failed(format!("cannot read the mount table: {error}")))?;
        let entry = table.find(directory).map_err(|error| Fail::failed(format!("{shown}: {error}")))?;
        let entry = entry.ok_or_else(|| Fail::failed(format!("{shown} is not a mountpoint")))?;
        if !entry.is_served() {
            return Err(Fail::failed(format!("{shown} is a mount of {}, not one of Floe", entry.file_system)));
        }
        let user_id = geteuid().as_raw();
        if let Some(owner) = entry.user_id.filter(|owner| *owner != user_id) {
            return Err(Fail::failed(format!("{shown} was mounted by user {owner}: only that user can query it")));
        }
        Ok(Self { directory: directory.to_owned(), user_id, device: entry.device })
    }

    /// Sends a question and returns the answer.
    ///
    /// # Errors
    /// The serving process is gone, does not answer, or refuses.
    pub(crate) fn ask(&self, question: &Question) -> Result<Answer, Fail> {
        let shown = self.directory.display();
        let connection = self.connect()?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Fail::failed(format!("the program that serves {shown} does not answer"))
            }
            _ => Fail::failed(format!("cannot query the program that serves {shown}: {error}")),
        };
        match converse(&connection, question, PATIENCE).map_err(failed)? {
            Answer::Refused(reason) => Err(Fail::failed(format!("{shown}: {reason}"))),
            answer => Ok(answer),
        }
    }

    /// Connects to the process that serves the mount.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn connect(&self) -> Result<UnixStream, Fail> {
        let candidates = socket_path::candidates(self.user_id, self.device);
        let connection = candidates.iter().find_map(|path| connect(path, self.user_id).ok());
        connection.ok_or_else(|| {
            let shown = self.directory.display();
            Fail::failed(format!("no program answers for {shown}: if it is gone, run floe umount {shown}"))
        })
    }
}

/// Connects to the socket of a mount of this user.
///
/// # Errors
/// No program listens, or another user's: the directory may have been that user's before.
pub(super) fn connect(path: &Path, user_id: u32) -> io::Result<UnixStream> {
    let connection = UnixStream::connect(path)?;
    if socket_peercred(&connection)?.uid.as_raw() == user_id {
        return Ok(connection);
    }
    Err(io::Error::from(io::ErrorKind::PermissionDenied))
}

/// Asks over a connection. Each read and write may take as long as `patience`.
pub(super) fn converse(connection: &UnixStream, question: &Question, patience: Duration) -> io::Result<Answer> {
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    write_line(connection, question)?;
    read_answer(connection)
}
