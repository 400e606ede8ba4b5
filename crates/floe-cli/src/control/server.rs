//! The end of the socket that answers.

use std::{
    fs::{self, Permissions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{net::sockopt::socket_peercred, process::geteuid};

use super::{Answer, Question, socket_path};

/// The longest question, in bytes.
const QUESTION_BYTES_MAX: u64 = 64 << 10;

/// How long a client may take to ask, and to take the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait where connections cannot be accepted, for want of descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, and does not have its name yet: the mount that it is named for is still to come, and by then
/// this process may make no sockets any more.
#[derive(Debug)]
pub(crate) struct Prepared {
    server: Server,
    listener: UnixListener,
}

/// The socket of a mount, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// Tells our socket from one that another mount put in its place.
    inode: (u64, u64),
}

impl Prepared {
    /// Makes a socket in the directory of this user's sockets, and the directory where it is missing.
    ///
    /// # Errors
    /// There is no place for the socket.
    pub(crate) fn new() -> io::Result<Self> {
        let path = socket_path::for_new(geteuid().as_raw(), &format!("new-{}", std::process::id()))?;
        absent(fs::remove_file(&path))?;
        let listener = UnixListener::bind(&path)?;
        let metadata = fs::symlink_metadata(&path)?;
        let server = Server { path, inode: (metadata.dev(), metadata.ino()) };
        fs::set_permissions(&server.path, Permissions::from_mode(0o600))?;
        Ok(Self { server, listener })
    }

    /// The directory that it is in.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.server.path.parent()
    }
}

/// No error where there is nothing to remove.
fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Server {
    /// Names a socket for the mount with this device number, and answers what it is asked on a thread of its own. What a
    /// mount left behind that had the number before is replaced.
    ///
    /// # Errors
    /// It cannot be renamed, or no thread can be started.
    pub(crate) fn start(
        prepared: Prepared,
        device: (u32, u32),
        answer: impl Fn(Question) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        let Prepared { mut server, listener } = prepared;
        let path = server.path.with_file_name(socket_path::name(device));
        fs::rename(&server.path, &path)?;
        server.path = path;
        thread::Builder::new().name("floe-control".to_owned()).spawn(move || serve(&listener, &answer))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let metadata = fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode) {
            // It would only be refused from now on.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn serve(listener: &UnixListener, answer: &dyn Fn(Question) -> Answer) {
    for connection in listener.incoming() {
        match connection {
            // A client that goes away or says nothing of use concerns nobody else.
            Ok(connection) => drop(converse(&connection, answer)),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn converse(connection: &UnixStream, answer: &dyn Fn(Question) -> Answer) -> io::Result<()> {
    connection.set_read_timeout(Some(CLIENT_PATIENCE))?;
    connection.set_write_timeout(Some(CLIENT_PATIENCE))?;
    // Who is to be refused has asked, too: a question that nobody reads would end the answer early.
    let mut line = String::new();
    BufReader::new(connection.take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let user = socket_peercred(connection)?.uid;
    let answer = match serde_json::from_str(&line) {
        // Root collects metrics of all users.
        Ok(Question::Status) if user.is_root() => answer(Question::Status),
        _ if user != geteuid() => Answer::Refused("only the user who mounted may ask".to_owned()),
        Ok(question) => answer(question),
        Err(_) => Answer::Refused(format!("floe {} does not know that question", env!("CARGO_PKG_VERSION"))),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    (&mut &*connection).write_all(&line)
}
