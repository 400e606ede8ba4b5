//! The connections on which requests arrive.

use std::{io, mem::MaybeUninit};

use floe_fuse_wire::Channel;
use rustix::{
    event::{
        EventfdFlags, PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd, poll,
    },
    fd::OwnedFd,
    io::Errno,
};

/// The number that stands for the end in place of a connection.
const END: u64 = u64::MAX;

/// The connections of a pool of session threads: waits for a request of any of them.
#[derive(Debug)]
pub(crate) struct Arrivals {
    epoll: OwnedFd,
    end: OwnedFd,
}

impl Arrivals {
    /// Creates the arrivals of no connections.
    ///
    /// # Errors
    /// The operating system refuses two descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        Ok(Self { epoll, end })
    }

    /// Adds a connection with this number.
    ///
    /// # Errors
    /// The operating system refuses it.
    pub(crate) fn add(&self, number: u64, channel: &Channel) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, channel, EventData::new_u64(number), EventFlags::IN)?)
    }

    /// Removes a connection, if it was added.
    pub(crate) fn remove(&self, channel: &Channel) {
        let _ = epoll::delete(&self.epoll, channel);
    }

    /// Waits until a connection has a request or has ended, and returns its number. Connections with requests are returned in
    /// turn. Returns `None` if the wait is interrupted or over.
    pub(crate) fn wait(&self) -> Option<u64> {
        let mut events = [MaybeUninit::uninit(); 1];
        let (events, _) = epoll::wait(&self.epoll, &mut events[..], None).ok()?;
        events.first().map(|event| event.data.u64()).filter(|number| *number != END)
    }

    /// Whether [`Arrivals::wait`] would return at once.
    pub(crate) fn is_readable(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&now)) {
                Err(Errno::INTR) => {}
                // If polling fails, "readable" is the safe answer.
                readable => return readable != Ok(0),
            }
        }
    }

    /// Lets nobody wait any more.
    pub(crate) fn end(&self) {
        // The counter is far from its limit.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, thread};

    use super::*;

    fn pipe() -> (Channel, File) {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        (Channel::new(ours), theirs.into())
    }

    #[test]
    fn connections_with_requests_take_turns() {
        let arrivals = Arrivals::new().expect("two descriptors");
        let mut pipes = [pipe(), pipe(), pipe()];
        for (number, (channel, _)) in (0..).zip(&pipes) {
            arrivals.add(number, channel).expect("a pipe can be polled");
        }
        assert!(!arrivals.is_readable());
        for (_, writer) in &mut pipes[1..] {
            writer.write_all(b"requests").expect("a pipe has room");
        }
        assert!(arrivals.is_readable());
        let order: Vec<_> = (0..6).filter_map(|_| arrivals.wait()).collect();
        assert!(order == [1, 2, 1, 2, 1, 2] || order == [2, 1, 2, 1, 2, 1], "{order:?}");
        arrivals.remove(&pipes[1].0);
        arrivals.remove(&pipes[1].0);
        assert_eq!([arrivals.wait(), arrivals.wait()], [Some(2); 2]);
    }

    #[test]
    fn the_end_wakes_all() {
        let arrivals = Arrivals::new().expect("two descriptors");
        thread::scope(|scope| {
            let waiting = [scope.spawn(|| arrivals.wait()), scope.spawn(|| arrivals.wait())];
            arrivals.end();
            for thread in waiting {
                assert_eq!(thread.join().expect("no panic"), None);
            }
        });
        assert_eq!(arrivals.wait(), None);
    }
}
