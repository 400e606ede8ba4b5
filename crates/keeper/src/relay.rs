//! Forwards messages of a confined process to datagram sockets.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType, UCred, recvmsg, sendmsg, socketpair,
    },
    process::{Pid, getegid, geteuid},
};

/// The longest message, in bytes. The rest of a longer one is lost.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Whether a message with this number of descriptors may be sent for a process.
pub type Permits = fn(message: &[u8], descriptors: usize, sender: Pid) -> bool;

/// A connected datagram socket of the keeper, and the socket from which the keeper takes the messages for it. A process that
/// holds a datagram socket can send messages, and descriptors, to any other one, so a confined process holds none. The
/// receiver trusts this user, so the keeper forwards only the messages that such a process has to send.
#[derive(Debug)]
pub struct Relay {
    from: OwnedFd,
    to: OwnedFd,
    permits: Permits,
}

impl Relay {
    /// Creates a relay to a connected datagram socket for the messages that `permits` lets through. Returns the socket for
    /// the confined process, which keeps the boundaries of messages.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(to: OwnedFd, permits: Permits) -> rustix::io::Result<(OwnedFd, Self)> {
        let (ours, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((ours, Self { from, to, permits }))
    }

    /// The numbers of its descriptors.
    pub(crate) fn numbers(&self) -> [RawFd; 2] {
        [self.from.as_raw_fd(), self.to.as_raw_fd()]
    }

    /// The socket that is readable when there is something to forward.
    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// Forwards all messages of `sender` that are there, each with at most one descriptor. Returns whether more can come.
    /// Messages that are not permitted, or that nobody takes, are lost.
    pub(crate) fn forward(&self, sender: Pid) -> bool {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received =
                retry_on_intr(|| recvmsg(&self.from, &mut [IoSliceMut::new(&mut message)], &mut control, flags));
            let descriptors = control.drain().flat_map(|part| match part {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                _ => Vec::new(),
            });
            let descriptors: Vec<OwnedFd> = descriptors.collect();
            match received {
                Ok(received) if received.bytes > 0 => {
                    let message = &message[..received.bytes];
                    if (self.permits)(message, descriptors.len(), sender) {
                        self.send(message, &descriptors, sender);
                    }
                }
                Err(Errno::AGAIN) => return true,
                Ok(_) | Err(_) => return false,
            }
        }
    }

    fn send(&self, message: &[u8], descriptors: &[OwnedFd], sender: Pid) {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        // The receiver is to see the process whose message this is. Only root may name another one.
        let credentials = UCred { pid: sender, uid: geteuid(), gid: getegid() };
        for names_sender in [true, false] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            if names_sender {
                control.push(SendAncillaryMessage::ScmCredentials(credentials));
            }
            let sent = retry_on_intr(|| sendmsg(&self.to, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL));
            if sent != Err(Errno::PERM) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, os::unix::net::UnixDatagram};

    use super::*;

    #[test]
    fn messages_arrive_with_their_boundaries_and_descriptors() {
        let (to, receiver) = UnixDatagram::pair().expect("sockets");
        let permits = |message: &[u8], descriptors, _| message != b"refused" && descriptors < 2;
        let (ours, relay) = Relay::new(to.into(), permits).expect("sockets");
        let sender = rustix::process::getpid();
        let file = tempfile::tempfile().expect("a file");
        for (message, with_descriptor) in
            [("READY=1", false), ("refused", false), ("FDSTORE=1\nFDNAME=x", true), ("last", false)]
        {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = [file.as_fd()];
            if with_descriptor {
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            sendmsg(&ours, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::NOSIGNAL).expect("sent");
        }
        assert!(relay.forward(sender), "more can come");
        for (expected, count) in [("READY=1", 0), ("FDSTORE=1\nFDNAME=x", 1), ("last", 0)] {
            let mut bytes = [0; 64];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&receiver, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
            assert_eq!(&bytes[..received.expect("a message").bytes], expected.as_bytes());
            let descriptors = control.drain().flat_map(|part| match part {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                _ => Vec::new(),
            });
            let descriptors: Vec<OwnedFd> = descriptors.collect();
            assert_eq!(descriptors.len(), count, "{expected}");
            for descriptor in descriptors {
                File::from(descriptor).write_all(b"the same file").expect("it is open for writing");
            }
        }
        assert_eq!(file.metadata().expect("a file").len(), 13);
        drop(ours);
        assert!(!relay.forward(sender), "nobody is left to send");
    }
}
