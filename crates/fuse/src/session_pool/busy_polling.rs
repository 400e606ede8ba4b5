//! Busy polling: a session thread polls for the next request before it sleeps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use floe_engine::MovingShare;

use super::arrivals::Arrivals;

/// The number of polls over which the moving average of their success rate extends.
const AVERAGED_POLLS: u32 = 16;

/// The success rate below which most polls are skipped.
const FOUND_SHARE_MIN: u32 = MovingShare::WHOLE / 2;

/// The number of polls skipped for each one made while the success rate is low. The polls that are made detect when
/// polling pays off again.
const SKIPPED_POLLS: u32 = 32;

/// A program takes up to this many times as long for the names in a reply as for other replies: `find` about 100 µs for
/// 200 names.
const LISTING_FACTOR: u32 = 4;

/// The maximum size in bytes of a read that is not one of several that the kernel's readahead sends at once.
const SMALL_READ_BYTES_MAX: u32 = 32 << 10;

/// The likely next request of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextRequest {
    /// Anything.
    Any,
    /// Anything, but only after the reply: this request is small, and not one of the kernel's readahead.
    AfterReply,
    /// The next part of a directory, once it has used the names of this one.
    OfListing,
}

impl NextRequest {
    /// The next request after a read of `len` bytes.
    pub(crate) fn after_read(len: u32) -> Self {
        if len <= SMALL_READ_BYTES_MAX { Self::AfterReply } else { Self::Any }
    }
}

/// Lets the thread that replied to a request poll for the next one for a short time.
///
/// A program that starts up reads one thing after the other. Without polling, each of its requests has to wake a thread
/// on an idle CPU first, which takes some tens of microseconds in a virtual machine or where CPUs sleep deeply. A
/// polling thread takes the next request at once. Polling costs CPU time, so it is limited to one thread, to callers
/// that send one request at a time, to times without readahead, to threads that have sent their reply, and to periods
/// in which polls mostly succeed.
pub(crate) struct BusyPolling {
    /// The longest time of a poll for any request; `None` disables polling.
    time_max: Option<Duration>,
    arrivals: Arc<Arrivals>,
    is_polling: AtomicBool,
    found_share: MovingShare,
    skipped: AtomicU32,
}

impl BusyPolling {
    /// Creates busy polling for at most `time_max`. It is disabled on a machine with a single CPU, which the caller needs.
    pub(crate) fn new(time_max: Option<Duration>, arrivals: Arc<Arrivals>) -> Self {
        let has_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Self {
            time_max: time_max.filter(|_| has_cpus),
            arrivals,
            is_polling: AtomicBool::new(false),
            found_share: MovingShare::new(AVERAGED_POLLS, MovingShare::WHOLE),
            skipped: AtomicU32::new(0),
        }
    }

    /// Polls for the `next` request if that is likely to succeed. Returns whether there is one, or `None` without a poll.
    pub(crate) fn poll(&self, next: NextRequest) -> Option<bool> {
        let time_max = self.time_max?;
        if !self.promises() || self.is_polling.swap(true, Relaxed) {
            return None;
        }
        let time_max = match next {
            NextRequest::Any | NextRequest::AfterReply => time_max,
            NextRequest::OfListing => time_max * LISTING_FACTOR,
        };
        let until = Instant::now() + time_max;
        let found = loop {
            match self.arrivals.is_readable() {
                false if Instant::now() < until => {}
                found => break found,
            }
            std::hint::spin_loop();
        };
        self.is_polling.store(false, Relaxed);
        self.found_share.note(found);
        Some(found)
    }

    fn promises(&self) -> bool {
        self.found_share.get() >= FOUND_SHARE_MIN
            || self.skipped.fetch_add(1, Relaxed) % (SKIPPED_POLLS + 1) == SKIPPED_POLLS
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use floe_fuse_wire::Channel;

    use super::*;

    fn busy_polling(time_max: Duration) -> (BusyPolling, Channel, OwnedFd) {
        let arrivals = Arc::new(Arrivals::new().expect("two descriptors"));
        let polling = BusyPolling::new(Some(time_max), Arc::clone(&arrivals));
        let polling = BusyPolling { time_max: Some(time_max), ..polling };
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        let channel = Channel::new(ours);
        arrivals.add(0, &channel).expect("a pipe can be polled");
        (polling, channel, theirs)
    }

    #[test]
    fn unsuccessful_polls_are_mostly_skipped() {
        let (polling, _channel, writer) = busy_polling(Duration::from_micros(1));
        for _ in 0..40 {
            assert_ne!(polling.poll(NextRequest::Any), Some(true));
        }
        let taken = (0..330).filter(|_| polling.promises()).count();
        assert_eq!(taken, 10);
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        let found = (0..40 * 33).filter(|_| polling.poll(NextRequest::Any) == Some(true)).count();
        assert!(found > 40 && (0..100).all(|_| polling.promises()), "now there always is a request");
    }

    #[test]
    fn there_are_no_polls_if_disabled() {
        let (polling, _channel, writer) = busy_polling(Duration::from_secs(100));
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        assert_eq!(polling.poll(NextRequest::Any), Some(true));
        let off = BusyPolling { time_max: None, ..polling };
        assert_eq!(off.poll(NextRequest::Any), None);
    }
}
