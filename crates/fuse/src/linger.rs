//! Session threads that look for the next request before they sleep.

use std::{
    os::fd::OwnedFd,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::deadline::has_answered;

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
pub(crate) struct Linger {
    /// How long at most; none: not at all.
    time_max: Option<Duration>,
    /// Whether there is other work for the CPU.
    is_wanted: Box<dyn Fn() -> bool + Send + Sync>,
    device: OnceLock<OwnedFd>,
    last_caller: AtomicU32,
    is_looking: AtomicBool,
    found_share: AtomicU32,
    left_out: AtomicU32,
}

/// A request that is being served. When this is dropped, the thread lingers if that promises something.
pub(crate) struct Lingering<'linger>(Option<&'linger Linger>);

impl Linger {
    /// Threads that look for so long, where the machine has a CPU for those who ask beside, and while it is not wanted
    /// for other work.
    pub(crate) fn new(time_max: Option<Duration>, is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let has_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        Self {
            time_max: time_max.filter(|_| has_cpus),
            is_wanted: Box::new(is_wanted),
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
        has_answered();
        let is_alone = self.last_caller.load(Relaxed) == caller;
        if !is_alone {
            self.last_caller.store(caller, Relaxed);
        }
        Lingering(is_alone.then_some(self))
    }

    fn linger(&self) {
        let (Some(time_max), Some(device)) = (self.time_max, self.device.get()) else { return };
        if (self.is_wanted)() || !self.promises() || self.is_looking.swap(true, Relaxed) {
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
        // Where another thread will answer, the program does not ask again before that.
        if let Some(linger) = self.0.filter(|_| has_answered()) {
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
    use std::sync::Arc;

    use super::*;
    use crate::deadline::Deadlines;

    fn linger(time_max: Duration) -> (Linger, OwnedFd) {
        let linger = Linger::new(Some(time_max), || false);
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
    fn who_has_not_answered_does_not_look() {
        let deadlines = Arc::new(Deadlines::new(None, 1));
        let (linger, writer) = linger(Duration::from_secs(100));
        let begun = [linger.begin(7), linger.begin(7)];
        let watched = deadlines.watch(Unasked);
        drop(begun);
        assert_eq!(linger.found_share.load(Relaxed), WHOLE);
        linger.found_share.store(WHOLE - WHOLE / 4, Relaxed);
        rustix::io::write(&writer, b"a request").expect("a pipe has room");
        let begun = linger.begin(7);
        let _ = watched.take();
        drop(begun);
        assert!(linger.found_share.load(Relaxed) > WHOLE - WHOLE / 4, "it has looked, and found the request");
        let off = Linger { time_max: None, ..linger };
        assert!(off.begin(7).0.is_none() && off.begin(7).0.is_none());
    }

    struct Unasked;

    impl crate::deadline::Answer for Unasked {
        fn refuse(self, _: fuser::Errno) {}
    }
}
