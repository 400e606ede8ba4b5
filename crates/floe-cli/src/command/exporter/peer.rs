//! The clients of the exporter: who is at the other end of a connection.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    ipproto::TCP,
    netlink::SOCK_DIAG,
    recv, send, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

/// How long the kernel may take to answer.
const KERNEL_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(100);

/// `SOCK_DIAG_BY_FAMILY`: asks for a socket.
const BY_FAMILY: u16 = 20;

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;

/// The length of a `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// The length of a `struct inet_diag_req_v2`.
const QUESTION_BYTES: usize = 56;

/// The offsets of the owner and of the inode in a `struct inet_diag_msg`.
const OWNER_AT: usize = 64;
const INODE_AT: usize = 68;

/// The client at the other end of a connection: a user of this machine, or an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Peer {
    address: IpAddr,
    /// The user whose socket is at the other end, if that is on this machine and open.
    user_id: Option<u32>,
}

impl Peer {
    /// The client at `remote` of a connection to `local`.
    pub(super) fn of(remote: SocketAddr, local: SocketAddr) -> Self {
        let address = remote.ip().to_canonical();
        let is_here = address.is_loopback() || address == local.ip().to_canonical();
        Self { address, user_id: is_here.then(|| owner(remote, local).ok()).flatten() }
    }
}

/// The user who owns the TCP socket at `source` that is connected to `destination` (sock_diag(7)). The time does not depend on
/// the number of sockets.
fn owner(source: SocketAddr, destination: SocketAddr) -> io::Result<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(KERNEL_TIME_MAX))?;
    send(&socket, &question(source, destination), SendFlags::empty())?;
    let mut answer = [0; 512];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(..len)?.get(at..at + 4)?.try_into().ok()?));
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    // A socket that its user has closed has no inode, and seems to be root's.
    let is_open = kind == Some(BY_FAMILY) && word(HEADER_BYTES + INODE_AT).is_some_and(|inode| inode != 0);
    let owner = word(HEADER_BYTES + OWNER_AT).filter(|_| is_open);
    owner.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The question to the kernel for the socket at `source` that is connected to `destination`.
fn question(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    bytes.extend(((HEADER_BYTES + QUESTION_BYTES) as u32).to_ne_bytes());
    bytes.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    bytes.extend([0; 8]);
    bytes.extend([family.as_raw() as u8, TCP.as_raw().get() as u8, 0, 0]);
    // All states.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend([source.port(), destination.port()].map(u16::to_be_bytes).concat());
    for address in [source.ip(), destination.ip()] {
        let mut words = [0; 16];
        match address {
            IpAddr::V4(address) => words[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => words.copy_from_slice(&address.octets()),
        }
        bytes.extend(words);
    }
    // Any interface, and no cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_local_client_is_a_user() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().expect("it listens").port();
            let loopback: IpAddr = if address == "[::1]:0" { "::1" } else { "127.0.0.1" }.parse().expect("an address");
            let client = TcpStream::connect((loopback, port)).expect("it listens");
            let (stream, remote) = listener.accept().expect("a connection");
            let local = stream.local_addr().expect("it is connected");
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(Peer::of(remote, local), Peer { address: loopback, user_id: Some(own) }, "{address}");
            drop(client);
            // A program that another test is starting may hold a copy of the socket for a moment.
            let gone = Peer { address: loopback, user_id: None };
            let start = Instant::now();
            while Peer::of(remote, local) != gone {
                assert!(start.elapsed() < Duration::from_secs(60), "{address}");
            }
        }
    }
}
