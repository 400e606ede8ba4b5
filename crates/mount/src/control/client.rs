//! The client side of the control socket.

use std::{
    fs,
    io::{self, Read},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use floe_ipc::ServiceClient;
use floe_keeper::MountTable;
use rustix::{
    io::retry_on_intr,
    net::{
        self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::geteuid,
};

use super::{
    Answer, Question,
    message::{ANSWER_BYTES_MAX, answer_of, read_answer_with_descriptors},
    socket_path, write_line,
};
use crate::{
    failure::Failure,
    handover::{Invocation, SealedInvocation},
};

/// A mount of Floe, as a client addresses it.
#[derive(Debug)]
pub struct Client {
    directory: PathBuf,
    user_id: u32,
    device: (u32, u32),
    /// Whether another user has mounted it, through the service of this one.
    is_of_other: bool,
}

impl Client {
    /// Finds the mount on a directory, without accessing the directory.
    ///
    /// # Errors
    /// Nothing is mounted there, the mount is not Floe's, or it belongs to another user.
    pub fn find(directory: &Path) -> Result<Self, Failure> {
        let shown = directory.shown();
        let table =
            MountTable::read().map_err(|error| Failure::failed(format!("cannot read the mount table: {error}")))?;
        let entry = table.find(directory).map_err(|error| Failure::failed(format!("{shown}: {error}")))?;
        let entry = entry.ok_or_else(|| Failure::failed(format!("{shown} is not a mountpoint")))?;
        if !entry.is_served() {
            return Err(Failure::failed(format!("{shown} is a mount of {}, not one of Floe", entry.file_system)));
        }
        let user_id = geteuid().as_raw();
        let mut client = Self { directory: directory.to_owned(), user_id, device: entry.device, is_of_other: false };
        if let Some(owner) = entry.user_id.filter(|owner| *owner != user_id) {
            // Root may ask its service about all mounts that this has made, and users about fronts, which the table shows as root's.
            let may_be_permitted = geteuid().is_root() || entry.is_front();
            client.is_of_other = may_be_permitted && client.through_service().is_some();
            if !client.is_of_other {
                return Err(Failure::failed(format!(
                    "{shown} was mounted by user {owner}: only that user can query it"
                )));
            }
        }
        Ok(client)
    }

    /// The device number of the mount.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Sends a question and returns the answer.
    ///
    /// # Errors
    /// The serving process is gone, does not answer, or refuses.
    pub fn ask(&self, question: &Question) -> Result<Answer, Failure> {
        let answer = converse(&self.connect()?, question, AnswerLimits::OWN);
        self.unless_refused(answer.map_err(|error| self.unanswered(&error))?)
    }

    /// Asks how the serving process was started. The answer does not depend on the image.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn invocation(&self) -> Result<Invocation, Failure> {
        let connection = self.connect()?;
        let answer = connection
            .set_write_timeout(Some(AnswerLimits::OWN.time))
            .and_then(|()| connection.set_read_timeout(Some(AnswerLimits::OWN.time)))
            .and_then(|()| write_line(&connection, &Question::Invocation))
            .and_then(|()| read_answer_with_descriptors(&connection));
        let (answer, descriptors) = answer.map_err(|error| self.unanswered(&error))?;
        self.unless_refused(answer)?;
        let sealed = descriptors.into_iter().next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        sealed.and_then(SealedInvocation::read).map_err(|error| self.unanswered(&error))
    }

    fn unanswered(&self, error: &io::Error) -> Failure {
        let shown = self.directory.shown();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Failure::failed(format!("the program that serves {shown} does not answer"))
            }
            _ => Failure::failed(format!("cannot query the program that serves {shown}: {error}")),
        }
    }

    fn unless_refused(&self, answer: Answer) -> Result<Answer, Failure> {
        match answer {
            Answer::Refused(reason) => Err(Failure::failed(format!("{}: {reason}", self.directory.shown()))),
            answer => Ok(answer),
        }
    }

    /// Connects to the process that serves the mount through the service, if that has mounted it.
    fn through_service(&self) -> Option<UnixStream> {
        let mut service = ServiceClient::connect().ok()?;
        service.set_patience(AnswerLimits::OWN.time);
        Some(service.control(self.device).ok()?.into())
    }

    /// Connects to the process that serves the mount.
    ///
    /// # Errors
    /// The process is gone.
    pub fn connect(&self) -> Result<UnixStream, Failure> {
        let mut candidates = socket_path::candidates(self.user_id, self.device);
        let mut connected = || candidates.find_map(|path| connect(&path, self.user_id, AnswerLimits::OWN.time).ok());
        let direct = if self.is_of_other { None } else { connected() };
        direct.or_else(|| self.through_service()).ok_or_else(|| {
            let shown = self.directory.shown();
            Failure::failed(format!("no program answers for {shown}: if it is gone, run floe umount {shown}"))
        })
    }
}

/// The limits of an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// How long it may take, from the connection to the last byte.
    pub time: Duration,
    /// Its maximum length, in bytes.
    pub bytes: usize,
}

impl AnswerLimits {
    /// The limits for a mount of the same user.
    const OWN: Self = Self { time: Duration::from_secs(10), bytes: ANSWER_BYTES_MAX as usize };
}

/// Connects to the socket of a mount of this user.
///
/// # Errors
/// The path is not a socket of this user, no program of this user listens, or it takes longer than `patience` to accept.
pub(super) fn connect(path: &Path, user_id: u32, patience: Duration) -> io::Result<UnixStream> {
    let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
    // A symbolic link could lead to the socket of any service.
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.file_type().is_socket() || metadata.uid() != user_id {
        return Err(denied());
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // connect(2) waits while the queue of a listener is full.
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| net::connect(&socket, &address))?;
    // The directory may have been another user's before.
    if socket_peercred(&socket)?.uid.as_raw() == user_id { Ok(socket.into()) } else { Err(denied()) }
}

/// Asks over a connection.
///
/// # Errors
/// The answer exceeds the limits, or is from another version of Floe.
pub(super) fn converse(connection: &UnixStream, question: &Question, limits: AnswerLimits) -> io::Result<Answer> {
    connection.set_write_timeout(Some(limits.time))?;
    let mut started = Instant::now();
    write_line(connection, question)?;
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    // A program that sends a byte now and then does not extend the time.
    let mut left = limits.time.saturating_sub(started.elapsed());
    while !answer.ends_with(b"\n") {
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_read_timeout(Some(left))?;
        started = Instant::now();
        let len = match (&mut &*connection).read(&mut piece) {
            Ok(0) => break,
            Ok(len) => len,
            // A signal interrupts a read with a timeout, even one that only stops this process and continues it. The time
            // in between does not count.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        left = left.saturating_sub(started.elapsed());
        if answer.len() + len > limits.bytes {
            return Err(io::Error::other("the answer is too long"));
        }
        answer.extend_from_slice(&piece[..len]);
    }
    answer_of(&answer)
}
