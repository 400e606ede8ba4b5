//! The server side of the control socket. It removes the sockets that killed mounts left behind.

use std::{
    collections::HashSet,
    fs::{self, Permissions},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::{
        fd::BorrowedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use floe_keeper::MountTable;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt::socket_peercred},
    process::geteuid,
};

use super::{
    Answer, Question,
    message::{QUESTION_BYTES_MAX, read_line},
    socket_path, write_line, write_line_with,
};

/// How long a client may take to send a question, and to receive the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);

/// The operations of a mount for its clients.
pub(crate) trait Service: Send + Sync {
    /// The sealed file that tells how this process was started, or the reason for a refusal.
    fn invocation(&self) -> Result<BorrowedFd<'_>, String>;

    /// Answers any other question.
    fn answer(&self, question: Question) -> Answer;

    /// Hands the mount over to the process at the other end of the connection. Runs on its own thread.
    fn hand_over(&self, connection: UnixStream);
}

/// A listening socket without its final name. The mount whose number names the socket does not exist yet; once it does,
/// this process can no longer create sockets.
#[derive(Debug)]
pub(crate) struct UnnamedSocket {
    server: Server,
    listener: UnixListener,
}

/// The socket of a mount. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// Distinguishes this socket from one that another mount put in its place.
    inode: (u64, u64),
}

impl UnnamedSocket {
    /// Creates a socket in the user's directory for sockets, which is created if it is missing. Removes the sockets there that
    /// killed mounts left behind.
    ///
    /// # Errors
    /// No directory is suitable for the socket.
    pub(crate) fn new() -> io::Result<Self> {
        let made = Self::beside_others();
        remove_leftovers();
        made
    }

    /// Creates a socket, and looks at no other one: the time does not depend on the number of mounts.
    ///
    /// # Errors
    /// As for [`UnnamedSocket::new`].
    pub(crate) fn beside_others() -> io::Result<Self> {
        let directory = socket_path::for_new(geteuid().as_raw())?;
        // A process with the same number may be in another process namespace.
        let path = directory.join(socket_path::name_of_new(RandomState::new().build_hasher().finish()));
        let listener = UnixListener::bind(&path)?;
        let metadata = fs::symlink_metadata(&path)?;
        let server = Server { path, inode: (metadata.dev(), metadata.ino()) };
        fs::set_permissions(&server.path, Permissions::from_mode(0o600))?;
        Ok(Self { server, listener })
    }

    /// Names the socket after the device number of the mount. A leftover socket of an earlier mount with that number is replaced.
    ///
    /// # Errors
    /// The socket cannot be renamed.
    pub(crate) fn named(self, device: (u32, u32)) -> io::Result<(Server, UnixListener)> {
        let (mut server, listener) = self.into_parts();
        server.name_after(device)?;
        Ok((server, listener))
    }

    /// The socket under its first name, and what listens there.
    pub(crate) fn into_parts(self) -> (Server, UnixListener) {
        (self.server, self.listener)
    }

    /// The directory of the socket.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.server.path.parent()
    }
}

impl Server {
    /// The socket that an earlier process has named, with its device and inode numbers.
    pub(crate) fn of_named(path: PathBuf, inode: (u64, u64)) -> Self {
        Self { path, inode }
    }

    /// Its path, and its device and inode numbers.
    pub(crate) fn name(&self) -> (&Path, (u64, u64)) {
        (&self.path, self.inode)
    }

    /// As [`UnnamedSocket::named`].
    ///
    /// # Errors
    /// The socket cannot be renamed.
    pub(crate) fn name_after(&mut self, device: (u32, u32)) -> io::Result<()> {
        let path = self.path.with_file_name(socket_path::name(device));
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // From now on, connections would only be refused.
        let _ = remove_own(&self.path, self.inode);
    }
}

/// What a client may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rights {
    /// What the user at the other end of the connection may ask.
    OfUser,
    /// Everything: the service has checked who the client is.
    All,
}

/// Answers the question of a client.
///
/// # Errors
/// The client breaks the protocol, or is too slow.
pub(super) fn converse(connection: UnixStream, service: &Arc<dyn Service>, rights: Rights) -> io::Result<()> {
    connection.set_read_timeout(Some(CLIENT_PATIENCE))?;
    connection.set_write_timeout(Some(CLIENT_PATIENCE))?;
    // Reads the question even of a client that will be refused: closing the socket with unread data would cut the
    // answer off.
    let line = read_line(&connection, QUESTION_BYTES_MAX)?;
    let user = socket_peercred(&connection)?.uid;
    let answer = match serde_json::from_str(&line) {
        // Root collects metrics of all users, and unmounts their mounts.
        Ok(question @ (Question::Status | Question::Connection)) if user.is_root() => service.answer(question),
        _ if user != geteuid() && rights == Rights::OfUser => {
            Answer::Refused("only the user who mounted the image can query it".to_owned())
        }
        Ok(Question::HandOver) => {
            let service = Arc::clone(service);
            let thread = thread::Builder::new().name("floe-handover".to_owned());
            return thread.spawn(move || service.hand_over(connection)).map(drop);
        }
        Ok(Question::Invocation) => match service.invocation() {
            Ok(sealed) => return write_line_with(&connection, &Answer::Invocation, &[sealed]),
            Err(reason) => Answer::Refused(reason),
        },
        Ok(question) => service.answer(question),
        Err(_) => Answer::Refused(format!("floe {} does not support this request", env!("CARGO_PKG_VERSION"))),
    };
    write_line(&connection, &answer)
}

/// The minimum age of a leftover without its final name. A starting mount creates its socket before it
/// listens on it, and until then the socket looks like a leftover.
const TRANSIENT_AGE_MIN: Duration = Duration::from_secs(60);

/// Removes the sockets of this user whose mount is gone and on which no process listens.
pub(crate) fn remove_leftovers() {
    let user_id = geteuid().as_raw();
    let Ok(table) = MountTable::read() else { return };
    let served: HashSet<_> =
        table.entries().iter().filter(|entry| entry.is_served()).map(|entry| entry.device).collect();
    for path in socket_path::paths_in(&socket_path::of_this_user(user_id), user_id) {
        let Some(name) = path.file_name() else { continue };
        let is_candidate = match socket_path::device(name) {
            // Connecting to the socket of an existing mount would wake its process.
            Some(device) => !served.contains(&device),
            None => socket_path::is_transient(name) && is_old(&path),
        };
        if is_candidate {
            // The next mount tries again.
            let _ = remove_if_unused(&path, user_id);
        }
    }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= TRANSIENT_AGE_MIN))
}

/// Removes a socket on which no process listens. A socket that another mount puts in its place meanwhile stays.
fn remove_if_unused(path: &Path, user_id: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.file_type().is_socket() || metadata.uid() != user_id {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => remove_own(path, (metadata.dev(), metadata.ino())),
        // A process listens, even if the queue of its connections is full.
        _ => Ok(()),
    }
}

/// Removes a socket unless another mount put its own in its place. The kernel may give the number of a mount to another
/// one before this process removes its socket, and the other socket may arrive between any two of these steps.
fn remove_own(path: &Path, inode: (u64, u64)) -> io::Result<()> {
    let is_own = |path: &Path| fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()) == inode);
    if !is_own(path)? {
        return Ok(());
    }
    // A rename takes whatever is there, and under its own name it cannot be replaced any more.
    let taken = path.with_file_name(socket_path::name_of_old(inode.1));
    fs::rename(path, &taken)?;
    if !is_own(&taken)? && renameat_with(CWD, &taken, CWD, path, RenameFlags::NOREPLACE).is_ok() {
        return Ok(());
    }
    fs::remove_file(&taken)
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn a_socket_that_replaces_another_survives_its_removal() {
        const ROUNDS: usize = 200;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0-57.sock");
        let create = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, name).expect("written");
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            (path, (metadata.dev(), metadata.ino()))
        };
        for round in 0..ROUNDS {
            let ((old, inode), (new, _)) = (create("old"), create("new"));
            fs::rename(old, &path).expect("renamed");
            let both_ready = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    both_ready.wait();
                    let _ = remove_own(&path, inode);
                });
                both_ready.wait();
                fs::rename(&new, &path).expect("renamed");
            });
            assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "round {round}");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "only the new socket is left");
    }
}
