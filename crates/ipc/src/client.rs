//! The client of the service.

use std::{
    env, fmt, fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::geteuid,
};

use crate::{
    TEXT_BYTES_MAX,
    codec::{receive, send},
    protocol::{
        Answer, DEVICES_MAX, MountRequest, MountTarget, PATH_BYTES_MAX, RefusalKind, Request, ServedMount,
        ServiceOffer, VERSION,
    },
};

/// The environment variable with the path of the service's socket, if that is not the usual one.
const VARIABLE: &str = "FLOE_SERVICE";

/// The socket at which the service of the machine serves all users, if the administrator has turned that on.
pub const USERS_SOCKET: &str = "/run/floe-users/service";

/// How long an answer may take. Opening an image may wait for a slow disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long an upgrade may take: the process of each user is replaced, one after the other.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(600);

/// How long the service may take to accept a connection.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// A connection to the service, a process that mounts many images (`floe serve`).
///
/// ```no_run
/// use std::{fs::File, path::Path};
///
/// use floe_ipc::{MountFiles, ServiceClient};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut service = ServiceClient::connect()?;
/// let files = MountFiles::open(Path::new("/srv/app.erofs"), &[], Path::new("/opt/app"))?;
/// let mounted = service.mount(&files, "nodev")?;
/// println!("{} is mounted on {}", mounted.image.display(), mounted.directory.display());
/// service.unmount(mounted.device, false)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ServiceClient {
    socket: OwnedFd,
}

/// The open files of a mount request.
#[derive(Debug)]
pub struct MountFiles {
    /// The descriptor is that of a file. The service opens a remote image itself.
    image: (PathBuf, Option<OwnedFd>),
    devices: Vec<(PathBuf, OwnedFd)>,
    /// The recorded launch, and the connection to a process that looks up its names.
    launch: Vec<OwnedFd>,
    target: (MountTarget, OwnedFd),
}

/// A mount of the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceMount {
    /// The path of the image.
    pub image: PathBuf,
    /// The directory, as it was when the mount was made.
    pub directory: PathBuf,
    /// The format of the image.
    pub format: String,
    /// The device number of its files, which the mount table has too.
    pub device: (u32, u32),
    /// The process that reads the image; 0 while another one is started.
    pub process: u32,
    /// The user who has mounted it.
    pub user: u32,
    /// The requests that could not be met exactly, as messages of one line.
    pub remarks: Vec<String>,
}

/// Why the service does not do something. Its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// No service listens.
    NotRunning {
        /// Its socket.
        socket: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The process at the other end belongs to neither root nor this user.
    Untrusted {
        /// Its user.
        user: u32,
    },
    /// The service is another version of Floe.
    Version {
        /// The version of its program.
        program: String,
    },
    /// The service has refused the request.
    Refused {
        /// The kind of reason.
        kind: RefusalKind,
        /// The reason.
        message: String,
    },
    /// A file cannot be opened.
    File {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The request is too long for a message.
    TooLong,
    /// The service has ended, or does not answer.
    Lost {
        /// The error of the operating system.
        error: io::Error,
    },
}

/// The path of the service's socket: that of the environment variable `FLOE_SERVICE`, else `/run/floe/service` for root and
/// `$XDG_RUNTIME_DIR/floe/service` for other users.
pub fn socket_path() -> PathBuf {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return path.into();
    }
    let user = geteuid();
    let runtime = || env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = match user.is_root() {
        true => PathBuf::from("/run"),
        false => runtime().unwrap_or_else(|| format!("/run/user/{}", user.as_raw()).into()),
    };
    directory.join("floe/service")
}

/// The sockets at which a client looks for a service, best first.
fn socket_paths() -> Vec<PathBuf> {
    let is_named = env::var_os(VARIABLE).is_some_and(|path| !path.is_empty());
    let of_users = (!is_named).then(|| PathBuf::from(USERS_SOCKET));
    [socket_path()].into_iter().chain(of_users).collect()
}

impl ServiceClient {
    /// Connects to the service at [`socket_path`], or else to the one that serves all users, at [`USERS_SOCKET`].
    ///
    /// # Errors
    /// No service of root or this user listens, or it is another version.
    pub fn connect() -> Result<Self, ClientError> {
        let mut first = None;
        for path in socket_paths() {
            match Self::connect_to(&path) {
                Err(error @ ClientError::NotRunning { .. }) => first = first.or(Some(error)),
                connected => return connected,
            }
        }
        Err(first.unwrap_or_else(damaged))
    }

    /// Connects to the service with this socket.
    ///
    /// # Errors
    /// As [`ServiceClient::connect`].
    pub fn connect_to(path: &Path) -> Result<Self, ClientError> {
        let socket = connected(path)
            .map_err(|error| ClientError::NotRunning { socket: path.to_owned(), error: error.into() })?;
        let user = socket_peercred(&socket).map_err(lost)?.uid;
        if !user.is_root() && user != geteuid() && !is_hidden(user.as_raw()) {
            return Err(ClientError::Untrusted { user: user.as_raw() });
        }
        let mut client = Self { socket };
        match client.ask(&Request::Hello { version: VERSION }, &[])?.0 {
            Answer::Hello { version: VERSION, .. } => {
                client.set_patience(PATIENCE);
                Ok(client)
            }
            Answer::Hello { program, .. } => Err(ClientError::Version { program }),
            _ => Err(damaged()),
        }
    }

    /// Sets how long an answer may take. By default it is two minutes, because opening an image may wait for a slow disk.
    pub fn set_patience(&mut self, patience: Duration) {
        for timeout in [Timeout::Send, Timeout::Recv] {
            // Without it, only the patience of the user is a limit.
            let _ = set_socket_timeout(&self.socket, timeout, Some(patience));
        }
    }

    /// Whether another user runs the service.
    pub fn is_of_another_user(&self) -> bool {
        socket_peercred(&self.socket).is_ok_and(|peer| peer.uid != geteuid())
    }

    /// What the service offers this client.
    ///
    /// # Errors
    /// The service does not answer.
    pub fn offer(&mut self) -> Result<ServiceOffer, ClientError> {
        match self.ask(&Request::Offer, &[])?.0 {
            Answer::Offered { offer } => Ok(offer),
            _ => Err(damaged()),
        }
    }

    /// Mounts an image, with options in the notation of `-o`. The image is mounted when this returns.
    ///
    /// # Errors
    /// The image cannot be mounted.
    pub fn mount(&mut self, files: &MountFiles, options: &str) -> Result<ServiceMount, ClientError> {
        self.mount_on(files, &files.target.0, Some(&files.target.1), options).map(|(mount, _)| mount)
    }

    /// Mounts an image behind the kernel's EROFS, on no directory. Returns the descriptor of the mount, too, which this process attaches
    /// to the directory (move_mount(2)). Only if the service [offers](Self::offer) fronts but no mounts.
    ///
    /// # Errors
    /// The image cannot be mounted so ([`RefusalKind::NotOffered`]: but in other ways).
    pub fn mount_detached(
        &mut self,
        files: &MountFiles,
        directory: &Path,
        options: &str,
    ) -> Result<(ServiceMount, OwnedFd), ClientError> {
        let target = MountTarget::Detached { directory: directory.as_os_str().as_bytes().to_vec() };
        match self.mount_on(files, &target, None, options)? {
            (mount, Some(descriptor)) => Ok((mount, descriptor)),
            (_, None) => Err(damaged()),
        }
    }

    fn mount_on(
        &mut self,
        files: &MountFiles,
        target: &MountTarget,
        file: Option<&OwnedFd>,
        options: &str,
    ) -> Result<(ServiceMount, Option<OwnedFd>), ClientError> {
        let MountFiles { image, devices, launch, .. } = files;
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let mount = MountRequest {
            image: bytes(&image.0),
            devices: devices.iter().map(|(path, _)| bytes(path)).collect(),
            options: options.to_owned(),
            target: target.clone(),
        };
        let path_bytes: usize = mount.devices.iter().map(Vec::len).sum();
        let is_short = mount.image.len() <= PATH_BYTES_MAX && path_bytes <= 4 * PATH_BYTES_MAX;
        if !is_short || options.len() > TEXT_BYTES_MAX || devices.len() > DEVICES_MAX {
            return Err(ClientError::TooLong);
        }
        let image_file = image.1.as_ref().map(AsFd::as_fd);
        let descriptors: Vec<BorrowedFd<'_>> = image_file
            .into_iter()
            .chain(devices.iter().map(|(_, device)| device.as_fd()))
            .chain(launch.iter().map(AsFd::as_fd))
            .chain(file.map(AsFd::as_fd))
            .collect();
        match self.ask(&Request::Mount { mount }, &descriptors)? {
            (Answer::Mounted { mount, remarks }, descriptor) => {
                Ok((ServiceMount { remarks, ..mount.into() }, descriptor))
            }
            _ => Err(damaged()),
        }
    }

    /// Unmounts the mount whose files have this device number. Returns whether the image is closed, too: its source may be
    /// stuck.
    ///
    /// # Errors
    /// The service has no such mount ([`RefusalKind::UnknownMount`]), or it is in use ([`RefusalKind::Busy`]).
    pub fn unmount(&mut self, device: (u32, u32), is_lazy: bool) -> Result<bool, ClientError> {
        match self.ask(&Request::Unmount { device: [device.0, device.1], is_lazy }, &[])?.0 {
            Answer::Unmounted { is_released } => Ok(is_released),
            _ => Err(damaged()),
        }
    }

    /// A connection to the control socket of the mount whose files have this device number.
    ///
    /// # Errors
    /// The service has no such mount of this user, or does not answer.
    pub fn control(&mut self, device: (u32, u32)) -> Result<OwnedFd, ClientError> {
        match self.ask(&Request::Control { device: [device.0, device.1] }, &[])? {
            (Answer::Connected, Some(connection)) => Ok(connection),
            _ => Err(damaged()),
        }
    }

    /// Replaces the program of the service by another one, an executable file opened with `O_PATH`, while all mounts are served. Returns
    /// what stays as it was, as messages of one line.
    ///
    /// # Errors
    /// This user does not run the service, or the program cannot continue it: the service goes on as before.
    pub fn upgrade(&mut self, program: BorrowedFd<'_>) -> Result<Vec<String>, ClientError> {
        self.set_patience(UPGRADE_PATIENCE);
        let answer = self.ask(&Request::Upgrade, &[program]);
        self.set_patience(PATIENCE);
        match answer?.0 {
            Answer::Upgraded { remarks, .. } => Ok(remarks),
            _ => Err(damaged()),
        }
    }

    /// All mounts of the service that this user may see.
    ///
    /// # Errors
    /// The service does not answer.
    pub fn list(&mut self) -> Result<Vec<ServiceMount>, ClientError> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let (Answer::Listed { mounts, has_more }, _) = self.ask(&Request::List { after }, &[])? else {
                return Err(damaged());
            };
            let last = mounts.last().map(|mount| mount.number);
            all.extend(mounts.into_iter().map(ServiceMount::from));
            match last.filter(|last| has_more && *last > after) {
                Some(last) => after = last,
                None => return Ok(all),
            }
        }
    }

    /// Asks. Returns the answer, and the descriptor beside it.
    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Option<OwnedFd>), ClientError> {
        // An answer may be there although the request cannot be sent: the service has too many clients.
        let sent = send(&self.socket, request, descriptors, SendFlags::empty());
        match (received_answer(&self.socket), sent) {
            (Ok(Some((Answer::Refused { kind, message }, _))), _) => Err(ClientError::Refused { kind, message }),
            (Ok(Some((answer, descriptors))), Ok(())) => Ok((answer, descriptors.into_iter().next())),
            (_, Err(error)) => Err(lost(error)),
            (Err(error), _) => Err(ClientError::Lost { error }),
            (Ok(None), _) => Err(lost(Errno::CONNRESET)),
        }
    }
}

impl MountFiles {
    /// Opens an image, its extra devices in the order of its device table, and the directory to mount on.
    ///
    /// # Errors
    /// One of them cannot be opened.
    pub fn open(image: &Path, devices: &[PathBuf], directory: &Path) -> Result<Self, ClientError> {
        let named = |path: &Path| Ok((absolute(path), opened(path, OFlags::RDONLY)?));
        Ok(Self {
            image: named(image).map(|(path, file)| (path, Some(file)))?,
            devices: devices.iter().map(|path| named(path)).collect::<Result<_, _>>()?,
            launch: Vec::new(),
            target: directory_to_mount_on(directory)?,
        })
    }

    /// A remote image, which the service fetches with the credentials of its user, and the directory to mount on.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn remote(url: &str, directory: &Path) -> Result<Self, ClientError> {
        let (devices, launch) = Default::default();
        Ok(Self { image: (url.into(), None), devices, launch, target: directory_to_mount_on(directory)? })
    }

    /// The same files with a recorded launch, which the options name, too (`profile=FILE`). A service [of another
    /// user](ServiceClient::is_of_another_user) has its names looked up over the connection `walk` (`floe_keeper::LaunchWalker`).
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn with_profile(self, profile: &Path, walk: Option<OwnedFd>) -> Result<Self, ClientError> {
        Ok(Self { launch: [opened(profile, OFlags::RDONLY)?].into_iter().chain(walk).collect(), ..self })
    }

    /// The same image and devices for a mount that this process has made: `device` is the descriptor of its connection, which nobody
    /// has read, and `number` the device number of its files.
    pub fn with_connection(self, directory: &Path, device: OwnedFd, number: (u32, u32)) -> Self {
        let directory = directory.as_os_str().as_bytes().to_vec();
        Self { target: (MountTarget::Connection { directory, device: [number.0, number.1] }, device), ..self }
    }

    /// Files that are open already: the image and the devices for reading, with their paths for messages, and the directory with
    /// `O_PATH`.
    pub fn new(image: (PathBuf, OwnedFd), devices: Vec<(PathBuf, OwnedFd)>, directory: OwnedFd) -> Self {
        let (image, target) = ((image.0, Some(image.1)), (MountTarget::Directory, directory));
        Self { image, devices, launch: Vec::new(), target }
    }
}

fn directory_to_mount_on(directory: &Path) -> Result<(MountTarget, OwnedFd), ClientError> {
    Ok((MountTarget::Directory, opened(directory, OFlags::PATH | OFlags::DIRECTORY)?))
}

fn opened(path: &Path, flags: OFlags) -> Result<OwnedFd, ClientError> {
    // Without NONBLOCK, opening a FIFO would wait for a writer.
    open(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| ClientError::File { path: path.to_owned(), error: error.into() })
}

impl From<ServedMount> for ServiceMount {
    fn from(mount: ServedMount) -> Self {
        let path = |bytes: Vec<u8>| PathBuf::from(std::ffi::OsString::from_vec(bytes));
        let ServedMount { image, directory, format, device: [major, minor], process, user, .. } = mount;
        let (image, directory) = (path(image), path(directory));
        Self { image, directory, format, device: (major, minor), process, user, remarks: Vec::new() }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use floe_image::ShownName;
        match self {
            Self::NotRunning { socket, error } => write!(
                formatter,
                "no service listens at {}: {error}: start it with floe serve, or omit --service",
                socket.shown()
            ),
            Self::Untrusted { user } => {
                write!(formatter, "the service belongs to user {user}, not to root or this user")
            }
            Self::Version { program } => write!(
                formatter,
                "the service is floe {program}, which speaks another version of the protocol: restart it"
            ),
            Self::Refused { message, .. } => formatter.write_str(message),
            Self::File { path, error } => write!(formatter, "{}: {error}", path.shown()),
            Self::TooLong => {
                write!(
                    formatter,
                    "the request is too long: at most {TEXT_BYTES_MAX} bytes of options and {DEVICES_MAX} devices"
                )
            }
            Self::Lost { error } => write!(formatter, "the service does not answer: {error}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// Receives an answer, and the descriptors beside it. Returns `None` if the service has closed the connection without one.
fn received_answer(socket: &OwnedFd) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    let received = || receive(socket, RecvFlags::empty());
    match received() {
        // A service that answers and closes the connection without reading the request resets it. The kernel reports that once,
        // before the answer.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => received(),
        answer => answer,
    }
}

/// Whether a user may be root of the machine, as a process in a user namespace sees it: all users without a number there have the
/// same one.
fn is_hidden(user: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    !map.is_empty() && !map.split_ascii_whitespace().eq(["0", "0", "4294967295"]) && overflow.trim().parse() == Ok(user)
}

/// Connects to a socket.
fn connected(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(GREETING_PATIENCE))?;
    }
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn lost(error: Errno) -> ClientError {
    ClientError::Lost { error: error.into() }
}

fn damaged() -> ClientError {
    ClientError::Lost { error: io::Error::other("its answer is damaged") }
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    #[test]
    fn an_answer_without_a_look_at_the_request_arrives() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        send(&ours, &Request::Hello { version: VERSION }, &[], SendFlags::empty()).expect("it has room");
        let refusal = Answer::Refused { kind: RefusalKind::Failed, message: "no".to_owned() };
        send(&theirs, &refusal, &[], SendFlags::empty()).expect("it has room");
        drop(theirs);
        let received = received_answer(&ours).expect("it was sent");
        assert_eq!(received.map(|(answer, _)| answer), Some(refusal));
        assert!(!matches!(received_answer(&ours), Ok(Some(_))), "there was one");
    }
}
