//! The directory with the sockets at which the next broker finds domains.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use floe_image::ShownName;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, openat, renameat, statat, unlinkat},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::geteuid,
};

use super::record_key::{LEN, RecordKey};

/// The suffix of the directory's path, after the path of the service's socket.
const SUFFIX: &str = ".domains";

/// The highest number of a domain or a mount. Larger ones are no numbers of a broker.
pub(super) const NUMBER_MAX: u64 = 1 << 48;

/// The maximum number of names in the directory that are considered.
const NAMES_MAX: usize = 4096;

/// The file with the key of the records, and its name until it is complete.
const KEY_NAME: &str = "key";
const NEW_KEY_NAME: &str = "key.new";

/// The directory with the sockets of domains, beside the service's socket. Only this user can enter it. A name is the number of a
/// domain. All accesses go through its descriptor.
#[derive(Debug)]
pub(super) struct DomainDirectory {
    path: PathBuf,
    directory: OwnedFd,
    key: RecordKey,
}

/// The state of a socket in the directory.
pub(super) enum Found {
    /// A process listens: a connection to it.
    Listening(OwnedFd),
    /// Its process has ended.
    Leftover,
}

impl DomainDirectory {
    /// Opens the directory for the service with this socket, and creates it if it is missing.
    ///
    /// # Errors
    /// Other users could enter it, it is no directory, or the key of the records can neither be read nor created there.
    pub(super) fn open(socket: &Path) -> io::Result<Self> {
        let mut path = OsString::from(socket);
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let foreign = || {
            let shown = path.shown();
            io::Error::other(format!("{shown} is not a directory that only this user can enter: remove it"))
        };
        let directory = open(&path, flags, Mode::empty()).map_err(|_| foreign())?;
        let stat = fstat(&directory)?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(foreign());
        }
        let key = match key_in(&directory) {
            Some(key) => key,
            None => {
                let key = RecordKey::random()?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(&directory, NEW_KEY_NAME, flags, Mode::RUSR | Mode::WUSR)?;
                File::from(file).write_all(key.bytes())?;
                renameat(&directory, NEW_KEY_NAME, &directory, KEY_NAME)?;
                key
            }
        };
        Ok(Self { path, directory, key })
    }

    /// The key of the records of this service.
    pub(super) fn key(&self) -> &RecordKey {
        &self.key
    }

    /// Creates the socket of a domain, which does not listen yet.
    ///
    /// # Errors
    /// There are no descriptors left, or no room in the directory.
    pub(super) fn create(&self, number: u64) -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &self.address(number)?)?;
        Ok(socket)
    }

    /// The numbers of the domains that have sockets here, and what else is here, by name.
    pub(super) fn list(&self) -> io::Result<(Vec<u64>, Vec<PathBuf>)> {
        let (mut numbers, mut others) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&self.directory)?.take(NAMES_MAX) {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let number = name.parse().ok().filter(|number: &u64| *number <= NUMBER_MAX && number.to_string() == name);
            match number {
                Some(number) if self.is_own_socket(name) => numbers.push(number),
                _ if matches!(name, "." | ".." | KEY_NAME | NEW_KEY_NAME) => {}
                _ => others.push(self.path.join(name)),
            }
        }
        numbers.sort_unstable();
        Ok((numbers, others))
    }

    /// Connects to the process that listens at a socket. Waiting for it, and for its messages, is limited to `patience`.
    ///
    /// # Errors
    /// It cannot be connected to.
    pub(super) fn connect(&self, number: u64, patience: Duration) -> io::Result<Found> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // connect(2) waits while the queue of a listener is full.
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(patience))?;
        }
        match connect(&socket, &self.address(number)?) {
            Ok(()) => Ok(Found::Listening(socket)),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Found::Leftover),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the socket of a domain that has ended.
    pub(super) fn remove(&self, number: u64) {
        // It may not be there.
        let _ = unlinkat(&self.directory, number.to_string(), AtFlags::empty());
    }

    /// Removes the directory, unless a domain has a socket there.
    pub(super) fn remove_itself(&self) {
        if self.list().is_ok_and(|(numbers, others)| numbers.is_empty() && others.is_empty()) {
            let _ = unlinkat(&self.directory, KEY_NAME, AtFlags::empty());
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// The path of a socket, for messages.
    pub(super) fn path_of(&self, number: u64) -> PathBuf {
        self.path.join(number.to_string())
    }

    fn address(&self, number: u64) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{number}", self.directory.as_raw_fd()))
    }

    fn is_own_socket(&self, name: &str) -> bool {
        statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_uid == geteuid().as_raw()
        })
    }
}

/// The key that an earlier service has left in its directory.
fn key_in(directory: &OwnedFd) -> Option<RecordKey> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, KEY_NAME, flags, Mode::empty()).ok()?);
    let mut bytes = [0; LEN];
    file.read_exact(&mut bytes).ok()?;
    Some(RecordKey::of(bytes))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use rustix::net::listen;

    use super::*;

    #[test]
    fn only_a_private_directory_is_used() {
        let folder = tempfile::tempdir().expect("a directory");
        let socket = folder.path().join("service");
        let path = folder.path().join("service.domains");
        DomainDirectory::open(&socket).expect("it is created").remove_itself();
        assert!(!path.exists(), "it was empty");
        fs::create_dir(&path).expect("ours");
        fs::set_permissions(&path, Permissions::from_mode(0o750)).expect("ours");
        assert!(DomainDirectory::open(&socket).is_err(), "others may enter");
        fs::remove_dir(&path).expect("ours");
        fs::write(&path, "a file").expect("ours");
        assert!(DomainDirectory::open(&socket).is_err());
        fs::remove_file(&path).expect("ours");
        fs::create_dir(folder.path().join("elsewhere")).expect("ours");
        symlink(folder.path().join("elsewhere"), &path).expect("ours");
        assert!(DomainDirectory::open(&socket).is_err(), "a link may lead anywhere");
    }

    #[test]
    fn sockets_are_found_by_their_numbers() {
        let folder = tempfile::tempdir().expect("a directory");
        // A name that is too long for the address of a socket.
        let folder = folder.path().join("a".repeat(120));
        fs::create_dir(&folder).expect("ours");
        let directory = DomainDirectory::open(&folder.join("service")).expect("it is created");
        let patience = Duration::from_secs(1);
        let path = folder.join("service.domains");
        let (first, second) = (directory.create(7).expect("a socket"), directory.create(12).expect("a socket"));
        listen(&second, 1).expect("it is bound");
        for (name, target) in [("8", "7"), ("x", "7")] {
            symlink(target, path.join(name)).expect("ours");
        }
        for name in ["9", "010", "18446744073709551615"] {
            fs::write(path.join(name), "").expect("ours");
        }
        let (numbers, others) = directory.list().expect("readable");
        assert_eq!((numbers, others.len()), (vec![7, 12], 5));
        assert!(matches!(directory.connect(7, patience), Ok(Found::Leftover)));
        assert!(matches!(directory.connect(12, patience), Ok(Found::Listening(_))));
        assert!(matches!(directory.connect(13, patience), Ok(Found::Leftover)));
        drop(first);
        directory.remove(7);
        directory.remove(7);
        assert_eq!(directory.list().expect("readable").0, [12]);
        directory.remove_itself();
        assert!(path.exists(), "a domain has its socket there");
    }
}
