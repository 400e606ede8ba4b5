//! Messages from the process that a keeper serves.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::{Shutdown, shutdown},
    process::Pid,
};

use super::messages::{Question, receive};
use crate::mounting::relay::Relay;

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
    /// Waits for a question, and forwards messages meanwhile. Returns `None` after `time_max` without either.
    ///
    /// # Errors
    /// The process has ended, or breaks the protocol.
    pub(super) fn question(&mut self, time_max: Option<Timespec>) -> Result<Option<Question>, Ended> {
        loop {
            let sources = [self.socket.as_fd()].into_iter().chain(self.relays.iter().map(Relay::source));
            let mut sources: Vec<PollFd<'_>> =
                sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            let ready_count = retry_on_intr(|| poll(&mut sources, time_max.as_ref())).map_err(|_error| Ended)?;
            let has_question = sources.first().is_some_and(|socket| !socket.revents().is_empty());
            // The process has sent these messages before the question.
            self.relays.retain(|relay| relay.forward(self.served));
            if has_question {
                let mut bytes = [0; 5];
                let (len, _) = receive(self.socket.as_fd(), &mut bytes).map_err(|_error| Ended)?;
                return bytes.get(..len).and_then(Question::from_bytes).map(Some).ok_or(Ended);
            }
            if ready_count == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes no more questions, and forwards the messages that the process has sent before its end. Returns whether it has told the
    /// keeper to end before that.
    pub(super) fn close(self) -> bool {
        let _ = shutdown(&self.socket, Shutdown::Both);
        for relay in &self.relays {
            relay.forward(self.served);
        }
        let mut bytes = [0; 5];
        while let Ok((len, _)) = receive(self.socket.as_fd(), &mut bytes)
            && len > 0
        {
            if bytes.get(..len).and_then(Question::from_bytes) == Some(Question::End) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;

    #[test]
    fn messages_of_an_ended_process_are_forwarded() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (to, receiver) = UnixDatagram::pair().expect("sockets");
        let (messages, relay) = Relay::new(to.into(), |_, _, _| true).expect("sockets");
        let (ours, theirs) = pair().expect("sockets");
        send(&messages, b"last words", SendFlags::NOSIGNAL).expect("there is room");
        drop((ours, messages));
        let incoming = Incoming { socket: theirs, relays: vec![relay], served: rustix::process::getpid() };
        assert!(!incoming.close());
        let mut bytes = [0; 64];
        let len = receiver.recv(&mut bytes).expect("a message");
        assert_eq!(&bytes[..len], b"last words");
    }

    #[test]
    fn an_end_that_was_asked_for_is_seen_behind_other_words() {
        for (words, is_told) in [
            (&[b"no question".as_slice(), &Question::Users.to_bytes()][..], false),
            (&[b"no question", &Question::Users.to_bytes(), &Question::End.to_bytes()], true),
        ] {
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let (ours, theirs) = pair.expect("sockets");
            for word in words {
                send(&ours, word, SendFlags::NOSIGNAL).expect("there is room");
            }
            let mut incoming = Incoming { socket: theirs, relays: Vec::new(), served: rustix::process::getpid() };
            incoming.question(None).expect_err("it is no question");
            assert_eq!(incoming.close(), is_told);
            send(&ours, &Question::End.to_bytes(), SendFlags::NOSIGNAL).expect_err("nobody takes it");
        }
    }
}
