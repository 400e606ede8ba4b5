//! Session threads that look for the next request before they sleep.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::connection::pending::Pending;

/// The share of looks that found a request is a moving average over about so many.
const AVERAGED_LOOKS: u32 = 16;

/// Shares are counted in parts of this.
const WHOLE: u32 = 1 << 16;

/// While less than this share of the looks finds a request, most looks are left out.
const WORTHWHILE: u32 = WHOLE / 2;

/// Then this many are left out for each that is taken, so that it shows when they are worth it again.
const LEFT_OUT: u32 = 32;

/// Has the thread that answered a request look for the next one for a short while.
///
/// A program that starts reads one thing after the other, and each time the thread that answers it would first have to be
/// woken on an idle CPU: some tens of microseconds in a virtual machine, or where CPUs sleep deeply. The thread that is
/// awake already takes the next request at once. It costs CPU time that nobody else wants as long as one program asks
/// one thing at a time and there is nothing to read ahead; so it is done only then, by one thread, only where that thread
/// has answered what it was asked, and only while it mostly succeeds.
pub(crate) struct BusyPolling {
    /// How long at most; none: not at all.
    time_max: Option<Duration>,
    /// Whether there is other work for the CPU.
    is_wanted: Box<dyn Fn() -> bool + Send + Sync>,
    pending: Arc<Pending>,
    last_caller: AtomicU32,
    is_looking: AtomicBool,
    found_share: AtomicU32,
    left_out: AtomicU32,
}

impl BusyPolling {
    /// Threads that look for so long, where the machine has a CPU for those who ask beside, and while it is not wanted
    /// for other work.
    pub(crate) fn new(
        time_max: Option<Duration>,
        pending: Arc<Pending>,
        is_wanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let has_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Self {
            time_max: time_max.filter(|_| has_cpus),
            is_wanted: Box::new(is_wanted),
            pending,
            last_caller: AtomicU32::new(0),
            is_looking: AtomicBool::new(false),
            found_share: AtomicU32::new(WHOLE),
            left_out: AtomicU32::new(0),
        }
    }

    /// Notes a request of the thread `caller`; gives whether the one before was of the same.
    pub(crate) fn note(&self, caller: u32) -> bool {
        let is_alone = self.last_caller.load(Relaxed) == caller;
        if !is_alone {
            self.last_caller.store(caller, Relaxed);
        }
        is_alone
    }

    /// Looks for the next request, if that promises something; gives whether there is one.
    pub(crate) fn poll(&self) -> bool {
        let Some(time_max) = self.time_max else { return false };
        if (self.is_wanted)() || !self.promises() || self.is_looking.swap(true, Relaxed) {
            return false;
        }
        let until = Instant::now() + time_max;
        let found = loop {
            match self.pending.is_there() {
                Some(false) if Instant::now() < until => {}
                found => break found == Some(true),
            }
            std::hint::spin_loop();
        };
        self.is_looking.store(false, Relaxed);
        self.average(found);
        found
    }

    fn promises(&self) -> bool {
        self.found_share.load(Relaxed) >= WORTHWHILE || self.left_out.fetch_add(1, Relaxed) % (LEFT_OUT + 1) == LEFT_OUT
    }

    fn average(&self, found: bool) {
        let share = self.found_share.load(Relaxed);
        let share = share - share / AVERAGED_LOOKS + if found { WHOLE / AVERAGED_LOOKS } else { 0 };
        self.found_share.store(share.min(WHOLE), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use floe_fuse_wire::Channel;

    use super::*;

    fn busy_polling(time_max: Duration) -> (BusyPolling, OwnedFd) {
        let pending = Arc::new(Pending::default());
        let polling = BusyPolling::new(Some(time_max), Arc::clone(&pending), || false);
        let polling = BusyPolling { time_max: Some(time_max), ..polling };
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        pending.look_at(Channel::new(ours));
        (polling, theirs)
    }

    #[test]
    fn only_one_program_at_a_time_is_waited_for() {
        let (polling, _writer) = busy_polling(Duration::ZERO);
        assert_eq!([7, 7, 8, 7].map(|caller| polling.note(caller)), [false, true, false, false]);
    }

    #[test]
    fn what_finds_nothing_is_mostly_left_out() {
        let (polling, writer) = busy_polling(Duration::from_micros(1));
        for _ in 0..40 {
            assert!(!polling.poll());
        }
        let taken = (0..330).filter(|_| polling.promises()).count();
        assert_eq!(taken, 10);
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        let found = (0..40 * 33).filter(|_| polling.poll()).count();
        assert!(found > 40 && (0..100).all(|_| polling.promises()), "now there always is a request");
    }

    #[test]
    fn nobody_looks_where_it_is_switched_off_or_there_is_other_work() {
        let (polling, writer) = busy_polling(Duration::from_secs(100));
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        assert!(polling.poll());
        let busy = BusyPolling { is_wanted: Box::new(|| true), ..polling };
        assert!(!busy.poll());
        let off = BusyPolling { time_max: None, is_wanted: Box::new(|| false), ..busy };
        assert!(!off.poll());
    }
}
