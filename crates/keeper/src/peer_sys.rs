//! The process at the other end of a Unix socket.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
    io::retry_on_intr,
    net::sockopt::socket_peercred,
};

use crate::peer_namespaces::PeerNamespaces;

/// `SO_PEERGROUPS`.
const PEER_GROUPS: libc::c_int = 59;

/// `SO_PEERPIDFD` of Linux 6.5.
const PEER_PROCESS: libc::c_int = 77;

/// The maximum number of groups of a process.
const GROUPS_MAX: usize = 65_536;

/// The process that has connected a Unix socket, with its user, its group and its groups at that time.
#[derive(Debug)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    groups: Vec<u32>,
    /// Its number in this process namespace.
    id: i32,
    process: OwnedFd,
}

impl Peer {
    /// The process at the other end of a connected socket.
    ///
    /// # Errors
    /// It has ended, is not visible to this process, or the kernel cannot tell it (before Linux 6.5).
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let credentials = socket_peercred(socket)?;
        let process = peer_process(socket)?;
        let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
        Ok(Self { uid, gid, groups: groups_of(socket)?, id: credentials.pid.as_raw_nonzero().get(), process })
    }

    /// Its groups apart from [`Peer::gid`].
    pub(crate) fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Its namespaces now. The descriptors keep them alive.
    ///
    /// # Errors
    /// The process has ended, or belongs to another user by now: a program that it runs may have changed that.
    pub fn namespaces(&self) -> io::Result<PeerNamespaces> {
        let opened = |name: &str| {
            let path = format!("/proc/{}/ns/{name}", self.id);
            open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|_error| gone())
        };
        let (mounts, users) = (opened("mnt")?, opened("user")?);
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).map_err(|_error| gone())?;
        // While the process exists, no other one has its number.
        if !self.is_running() || user_in(&status) != Some(self.uid) {
            return Err(gone());
        }
        PeerNamespaces::new(mounts, users)
    }

    fn is_running(&self) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_intr(|| poll(&mut ended, Some(&at_once))) == Ok(0)
    }
}

fn gone() -> io::Error {
    io::Error::other("the process that has connected is gone, or another user's by now")
}

/// A descriptor of the process at the other end of a connected socket. If that was accepted from a listening one, it is the process that
/// has begun to listen. No other process has its number while it has not ended.
///
/// # Errors
/// It has ended, or the kernel cannot tell it (`ENOPROTOOPT` before Linux 6.5).
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut process = [0; size_of::<libc::c_int>()];
    option(socket, PEER_PROCESS, &mut process)?;
    // SAFETY: the kernel has just made this descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::c_int::from_ne_bytes(process)) })
}

/// The user of a process; `None` if it has ended, or has several user ids.
pub fn user_of_process(id: u32) -> Option<u32> {
    user_in(&fs::read_to_string(format!("/proc/{id}/status")).ok()?)
}

/// The user id in `/proc/PID/status`, if all four are the same.
fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let ids: Vec<_> = line.split_ascii_whitespace().collect();
    let [first, .., _, _] = ids[..] else { return None };
    (ids.len() == 4 && ids.iter().all(|id| *id == first)).then(|| first.parse().ok())?
}

fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut bytes = vec![0; GROUPS_MAX * size_of::<u32>()];
    let len = option(socket, PEER_GROUPS, &mut bytes)?;
    let groups = bytes.get(..len).unwrap_or_default().chunks_exact(size_of::<u32>());
    Ok(groups.filter_map(|group| Some(u32::from_ne_bytes(group.try_into().ok()?))).collect())
}

/// Reads an option of a socket. Returns its length in bytes.
fn option(socket: BorrowedFd<'_>, name: libc::c_int, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = MaybeUninit::new(libc::socklen_t::try_from(bytes.len()).map_err(io::Error::other)?);
    // SAFETY: the kernel writes at most `len` bytes, which the slice has, and the new length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            bytes.as_mut_ptr().cast(),
            len.as_mut_ptr(),
        )
    };
    // SAFETY: it was initialised above.
    if result == 0 { Ok(unsafe { len.assume_init() } as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let peer = match Peer::of(one.as_fd()) {
            // Linux before 6.5.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return,
            peer => peer.expect("it is this process"),
        };
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.id, rustix::process::getpid().as_raw_nonzero().get());
        assert!(peer.is_running());
        assert_eq!(user_of_process(std::process::id()), Some(peer.uid));
        let namespaces = peer.namespaces().expect("they are ours");
        assert!(namespaces.are_of_the_machine());
    }

    #[test]
    fn a_process_is_that_of_a_user_with_all_its_ids() {
        for (status, is_expected) in [
            ("Name:\tsh\nUid:\t7\t7\t7\t7\nGid:\t0\t0\t0\t0\n", true),
            ("Uid:\t7\t0\t7\t7\n", false),
            ("Uid:\t0\t7\t7\t7\n", false),
            ("Uid:\t7\t7\t7\n", false),
            ("Gid:\t7\t7\t7\t7\n", false),
            ("", false),
        ] {
            assert_eq!(user_in(status), is_expected.then_some(7), "{status:?}");
        }
    }
}
