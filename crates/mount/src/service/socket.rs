//! The socket on which the service listens.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, Permissions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

use floe_fuse::{InheritedDescriptors, passed_descriptors};
use floe_image::ShownName;
use rustix::{
    io::{Errno, ioctl_fionbio},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
        sockopt::{socket_acceptconn, socket_type},
    },
};

use super::succession::PassedSocket;
use crate::failure::Failure;

/// The number of clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The name of the socket for all users, if a service manager passes several.
const USERS: &str = "users";

/// Who may connect to a socket of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClientsOf {
    /// The user who runs the service.
    ThisUser,
    /// Every user.
    AllUsers,
}

/// The socket on which the service listens. Dropping it removes its name, unless a service manager has created it.
#[derive(Debug)]
pub struct ServiceSocket {
    listener: OwnedFd,
    /// Its name, with the device and inode numbers that distinguish it from one that another service puts in its place.
    name: Option<(PathBuf, (u64, u64))>,
}

impl ServiceSocket {
    /// The socket of this user, and that of all users if there is to be one, at `users_path` or passed: those that a service manager has passed to this process
    /// (sd_listen_fds(3)), the one for all users under the name `users`, else new ones at these paths. A missing directory is
    /// created, for the same users.
    ///
    /// # Errors
    /// Another service listens at a path, or the socket cannot be created.
    pub fn open(path: &Path, users_path: Option<&Path>) -> Result<(Self, Option<Self>), Failure> {
        let is_ours = |socket: &OwnedFd| {
            socket_acceptconn(socket) == Ok(true) && socket_type(socket) == Ok(SocketType::SEQPACKET)
        };
        let passed = passed_descriptors().into_iter().filter(|(_, socket)| is_ours(socket));
        let (of_users, own): (Vec<_>, Vec<_>) = passed.partition(|(name, _)| name == USERS);
        let open = |passed: Vec<(String, OwnedFd)>, path: &Path, clients: ClientsOf| {
            let failed = |error: io::Error| Failure::failed(format!("cannot listen at {}: {error}", path.shown()));
            match passed.into_iter().next() {
                Some((_, listener)) => {
                    ioctl_fionbio(&listener, true).map_err(|error| failed(error.into()))?;
                    Ok(Self { listener, name: None })
                }
                None => Self::create(path, clients).map_err(failed),
            }
        };
        let own = open(own, path, ClientsOf::ThisUser)?;
        let of_users = match (users_path, of_users.is_empty()) {
            (None, true) => None,
            (path, _) => Some(open(of_users, path.unwrap_or(Path::new(USERS)), ClientsOf::AllUsers)?),
        };
        Ok((own, of_users))
    }

    fn create(path: &Path, clients: ClientsOf) -> io::Result<Self> {
        let (directory_mode, mode) = match clients {
            ClientsOf::ThisUser => (0o700, 0o600),
            ClientsOf::AllUsers => (0o755, 0o666),
        };
        if let Some(directory) = path.parent() {
            match DirBuilder::new().mode(directory_mode).create(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        remove_leftover(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        // Nobody can connect before it listens.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let metadata = fs::symlink_metadata(path)?;
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, name: Some((path.to_owned(), (metadata.dev(), metadata.ino()))) })
    }
}

impl ServiceSocket {
    /// The socket for the next program of this process. `pass` gets its descriptor.
    ///
    /// # Errors
    /// Those of `pass`.
    pub(super) fn pass(&self, pass: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<RawFd>) -> io::Result<PassedSocket> {
        let name = self.name.as_ref().map(|(path, (device, inode))| (path.clone(), *device, *inode));
        Ok(PassedSocket { listener: pass(self.as_fd())?, name })
    }

    /// The socket of an earlier program of this process.
    ///
    /// # Errors
    /// It is not open.
    pub(super) fn passed(passed: PassedSocket, inherited: &mut InheritedDescriptors) -> io::Result<Self> {
        let listener = inherited.take(passed.listener)?;
        Ok(Self { listener, name: passed.name.map(|(path, device, inode)| (path, (device, inode))) })
    }

    /// Its path; `None` if it has none.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let address = getsockname(&self.listener).ok().and_then(|address| SocketAddrUnix::try_from(address).ok())?;
        let path = address.path_bytes().filter(|path| !path.is_empty())?;
        Some(PathBuf::from(OsStr::from_bytes(path)))
    }
}

impl AsFd for ServiceSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ServiceSocket {
    fn drop(&mut self) {
        if let Some((path, inode)) = &self.name
            && fs::symlink_metadata(path).is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == *inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes the socket of a service that was killed.
///
/// # Errors
/// A service listens there, or something else has the name.
fn remove_leftover(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        _ => Err(io::Error::other("another service listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_service_listens_and_leftovers_are_replaced() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("floe/service");
        let first = ServiceSocket::create(&path, ClientsOf::ThisUser).expect("nobody listens");
        assert_eq!(fs::symlink_metadata(path.parent().expect("a directory")).expect("there").mode() & 0o777, 0o700);
        assert!(ServiceSocket::create(&path, ClientsOf::ThisUser).is_err(), "the first one listens");
        // As after a kill, the name stays.
        let ServiceSocket { listener, .. } = &first;
        rustix::net::shutdown(listener, rustix::net::Shutdown::Both).expect("it listens");
        let second = ServiceSocket::create(&path, ClientsOf::ThisUser);
        if let Ok(second) = second {
            drop(first);
            assert!(path.exists(), "the first one does not remove the name of the second one");
            drop(second);
            assert!(!path.exists());
        }
        fs::write(&path, "no socket").expect("ours");
        assert!(ServiceSocket::create(&path, ClientsOf::ThisUser).is_err());
    }
}
