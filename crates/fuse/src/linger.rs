//! Session threads that look for the next request before they sleep.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::deadline::Deadlines;

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
/// one thing at a time; so it is done only then, by one thread, and only while it mostly succeeds.
pub(crate) struct Linger {
    /// How long at most; none: not at all.
    time_max: Option<Duration>,
    deadlines: Arc<Deadlines>,
    device: OnceLock<OwnedFd>,
    last_caller: AtomicU32,
    is_looking: AtomicBool,
    found_share: AtomicU32,
    left_out: AtomicU32,
}

/// A request that is being served. When this is dropped, the thread lingers if that promises something.
pub(crate) struct Lingering<'linger>(Option<&'linger Linger>);

impl Linger {
    /// Threads that look for so long, where the machine has a CPU for those who ask beside.
    pub(crate) fn new(time_max: Option<Duration>, deadlines: Arc<Deadlines>) -> Self {
        let has_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Self {
            time_max: time_max.filter(|_| has_cpus),
            deadlines,
            device: OnceLock::new(),
            last_caller: AtomicU32::new(0),
            is_looking: AtomicBool::new(false),
            found_share: AtomicU32::new(WHOLE),
            left_out: AtomicU32::new(0),
        }
    }

    /// Names the descriptor that shows whether there is a request. Before that nobody lingers.
    pub(crate) fn look_at(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Notes a request of the thread `caller`.
    pub(crate) fn begin(&self, caller: u32) -> Lingering<'_> {
        if self.time_max.is_none() {
            return Lingering(None);
        }
        let is_alone = self.last_caller.load(Relaxed) == caller;
        if !is_alone {
            self.last_caller.store(caller, Relaxed);
        }
        Lingering(is_alone.then_some(self))
    }

    fn linger(&self) {
        let (Some(time_max), Some(device)) = (self.time_max, self.device.get()) else { return };
        if self.deadlines.under_way() > 0 || !self.promises() || self.is_looking.swap(true, Relaxed) {
            return;
        }
        let until = Instant::now() + time_max;
        let found = loop {
            if has_request(device) {
                break true;
            }
            if Instant::now() >= until {
                break false;
            }
            std::hint::spin_loop();
        };
        self.is_looking.store(false, Relaxed);
        self.average(found);
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

impl Drop for Lingering<'_> {
    fn drop(&mut self) {
        if let Some(linger) = self.0 {
            linger.linger();
        }
    }
}

/// Whether a read of the device would not wait, be it for the end of the connection.
fn has_request(device: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(device, PollFlags::IN)];
    !matches!(poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linger(time_max: Duration) -> (Linger, OwnedFd) {
        let linger = Linger::new(Some(time_max), Arc::new(Deadlines::new(None, 1)));
        let linger = Linger { time_max: Some(time_max), ..linger };
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        linger.look_at(ours);
        (linger, theirs)
    }

    #[test]
    fn only_one_program_at_a_time_is_waited_for() {
        let (linger, _writer) = linger(Duration::ZERO);
        assert!(linger.begin(7).0.is_none(), "the first of it");
        assert!(linger.begin(7).0.is_some());
        assert!(linger.begin(8).0.is_none());
        assert!(linger.begin(7).0.is_none());
    }

    #[test]
    fn what_finds_nothing_is_mostly_left_out() {
        let (linger, writer) = linger(Duration::from_micros(1));
        for _ in 0..40 {
            linger.linger();
        }
        let taken = (0..330).filter(|_| linger.promises()).count();
        assert_eq!(taken, 10);
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        for _ in 0..40 * 33 {
            linger.linger();
        }
        assert!((0..100).all(|_| linger.promises()), "now there always is a request");
    }

    #[test]
    fn nobody_looks_while_requests_are_under_way_or_it_is_switched_off() {
        struct Nothing;
        impl crate::deadline::Answer for Nothing {
            fn refuse(self, _: fuser::Errno) {}
        }
        let (linger, _writer) = linger(Duration::from_secs(100));
        let watched = linger.deadlines.watch(Nothing);
        linger.linger();
        drop(watched);
        assert_eq!(linger.deadlines.under_way(), 0);
        let off = Linger { time_max: None, ..linger };
        assert!(off.begin(7).0.is_none() && off.begin(7).0.is_none());
    }
}
