//! Messages from the process that a keeper serves.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use floe_ipc::receive;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::{RecvFlags, Shutdown, shutdown},
    process::Pid,
};

use crate::{messages::Request, relay::Relay};

/// The sockets of a keeper.
pub(super) struct Incoming {
    pub(super) socket: OwnedFd,
    pub(super) relays: Vec<Relay>,
    /// The process at their other ends.
    pub(super) served: Pid,
}

/// The process has ended, or breaks the protocol.
#[derive(Debug)]
pub(super) struct Ended;

impl Incoming {
    /// Waits for a request, and forwards messages meanwhile. Returns `None` after `time_max` without either.
    ///
    /// # Errors
    /// The process has ended, or breaks the protocol.
    pub(super) fn request(&mut self, time_max: Option<Timespec>) -> Result<Option<Request>, Ended> {
        loop {
            let sources = [self.socket.as_fd()].into_iter().chain(self.relays.iter().map(Relay::source));
            let mut sources: Vec<PollFd<'_>> =
                sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            let ready_count = retry_on_intr(|| poll(&mut sources, time_max.as_ref())).map_err(|_error| Ended)?;
            let has_request = sources.first().is_some_and(|socket| !socket.revents().is_empty());
            // The process has sent these messages before the request.
            self.relays.retain(|relay| relay.forward(self.served));
            if has_request {
                return match receive(&self.socket, RecvFlags::empty()) {
                    Ok(Some((request, _))) => Ok(Some(request)),
                    Ok(None) | Err(_) => Err(Ended),
                };
            }
            if ready_count == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes no more requests, and forwards the messages that the process has sent before its end. Returns whether it has told the
    /// keeper to end before that.
    pub(super) fn close(self) -> bool {
        let _ = shutdown(&self.socket, Shutdown::Both);
        for relay in &self.relays {
            relay.forward(self.served);
        }
        loop {
            match receive(&self.socket, RecvFlags::empty()) {
                Ok(Some((Request::End, _))) => return true,
                Ok(Some(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(None) | Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use floe_ipc::Encoded;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        pair.expect("sockets")
    }

    #[test]
    fn messages_of_an_ended_process_are_forwarded() {
        let (to, receiver) = UnixDatagram::pair().expect("sockets");
        let (messages, relay) = Relay::new(to.into(), |_, _, _| true).expect("sockets");
        let (ours, theirs) = pair();
        send(&messages, b"last words", SendFlags::NOSIGNAL).expect("there is room");
        drop((ours, messages));
        let incoming = Incoming { socket: theirs, relays: vec![relay], served: rustix::process::getpid() };
        assert!(!incoming.close());
        let mut bytes = [0; 64];
        let len = receiver.recv(&mut bytes).expect("a message");
        assert_eq!(&bytes[..len], b"last words");
    }

    #[test]
    fn an_end_that_was_asked_for_is_seen_behind_other_messages() {
        let (users, end) = (Request::FindUsers.to_bytes(), Request::End.to_bytes());
        for (messages, is_told) in
            [(&[b"no request", users.as_slice()][..], false), (&[b"no request", &users, &end], true)]
        {
            let (ours, theirs) = pair();
            for message in messages {
                send(&ours, message, SendFlags::NOSIGNAL).expect("there is room");
            }
            let mut incoming = Incoming { socket: theirs, relays: Vec::new(), served: rustix::process::getpid() };
            incoming.request(None).expect_err("it is no request");
            assert_eq!(incoming.close(), is_told);
            send(&ours, &end, SendFlags::NOSIGNAL).expect_err("nobody takes it");
        }
    }
}
