//! Deadlines and progress of requests.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
    time::Duration,
};

use floe_fuse_wire::{Errno, Reply};
use floe_sync::Mutex;

/// The length of a deadline in ticks of the coarse clock. Deadlines are therefore exact to about an eighth.
const TICKS_PER_DEADLINE: u64 = 8;

const SHARD_COUNT: usize = 8;

/// The requests of a mount that are in progress, and the session threads that serve them.
///
/// Time comes from a coarse clock that the watchdog advances while requests are in progress, so a request costs two short locks
/// and no system call.
pub(crate) struct Deadlines {
    /// The longest time that a request may take; `None` disables deadlines.
    deadline: Option<Duration>,
    clock: AtomicU64,
    shards: [Mutex<PendingReplies>; SHARD_COUNT],
    /// For each shard, the number of requests that it has had, and of those that were answered.
    progress: [(AtomicU64, AtomicU64); SHARD_COUNT],
    threads: Box<[ThreadState]>,
}

/// The state of a session thread, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct ThreadState {
    /// The tick at which its request began plus one, or 0 while it is idle.
    busy_since: AtomicU64,
    /// The number of requests that it has begun.
    begun: AtomicU64,
    /// Which of these requests was answered last, counted from 1.
    answered: AtomicU64,
}

/// How far the requests of a mount have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The number of requests without a reply.
    pub waiting: u64,
    /// The number of requests that got a reply.
    pub answered: u64,
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Deadlines").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

/// Pending replies. A slot whose reply was sent stays reserved until its [`PendingReply`] is dropped.
#[derive(Default)]
struct PendingReplies {
    slots: Vec<Option<(u64, Reply)>>,
    free: Vec<usize>,
}

impl Deadlines {
    /// Creates deadlines for the requests of `thread_count` session threads.
    pub(crate) fn new(deadline: Option<Duration>, thread_count: usize) -> Self {
        Self {
            deadline,
            clock: AtomicU64::new(0),
            shards: Default::default(),
            progress: Default::default(),
            threads: (0..thread_count).map(|_| ThreadState::default()).collect(),
        }
    }

    /// The interval at which [`Deadlines::tick`] must be called; `None` without deadlines.
    pub(crate) fn tick_interval(&self) -> Option<Duration> {
        self.deadline.map(|deadline| (deadline / TICKS_PER_DEADLINE as u32).max(Duration::from_millis(1)))
    }

    /// Marks a session thread as busy with its next request until [`BusyThread::end`].
    pub(crate) fn enter(self: &Arc<Self>, thread: usize) -> BusyThread<'_> {
        let number = self.threads.get(thread).map_or(0, |state| {
            state.busy_since.store(self.clock.load(Relaxed) + 1, Release);
            state.begun.fetch_add(1, Relaxed) + 1
        });
        BusyThread { deadlines: self, thread, number }
    }

    /// Advances the clock, and replies `EIO` to requests whose deadline has passed. Returns their number.
    pub(crate) fn tick(&self) -> usize {
        let now = self.clock.fetch_add(1, Relaxed) + 1;
        let mut overdue = Vec::new();
        for (shard, (_, answered)) in self.shards.iter().zip(&self.progress) {
            let before = overdue.len();
            for slot in &mut shard.lock().slots {
                if slot.as_ref().is_some_and(|(since, _)| now - since > TICKS_PER_DEADLINE) {
                    overdue.extend(slot.take());
                }
            }
            answered.fetch_add((overdue.len() - before) as u64, Release);
        }
        let count = overdue.len();
        overdue.into_iter().for_each(|(_, reply)| reply.refuse(Errno::IO));
        count
    }

    /// The number of requests that wait for their reply, and the number of those that have got it.
    pub(crate) fn progress(&self) -> Progress {
        let (mut begun, mut answered) = (0, 0);
        for (of_begun, of_answered) in &self.progress {
            // In this order, no request counts as answered that has not begun.
            answered += of_answered.load(Acquire);
            begun += of_begun.load(SeqCst);
        }
        Progress { waiting: begun - answered, answered }
    }

    /// Whether a session thread has been busy with one of these requests for longer than the deadline.
    pub(crate) fn is_stuck(&self, thread: usize) -> bool {
        let now = self.clock.load(Relaxed);
        self.threads.get(thread).is_some_and(|state| match state.busy_since.load(Acquire) {
            0 => false,
            since => now.saturating_sub(since - 1) > TICKS_PER_DEADLINE,
        })
    }
}

/// The reply of a request with a deadline. If it is dropped without being taken, the request gets `EIO`.
pub(crate) struct PendingReply {
    deadlines: Arc<Deadlines>,
    /// The session thread that has taken the request, and the number of the request among those of the thread.
    thread: usize,
    number: u64,
    location: ReplyLocation,
}

/// The location of a reply.
enum ReplyLocation {
    /// In the variant itself, because there are no deadlines.
    Held(Reply),
    /// In a slot of the shard, unless its deadline has passed.
    Listed(usize),
    Taken,
}

impl PendingReply {
    /// Takes the reply. `None` if the deadline has passed.
    pub(crate) fn take(mut self) -> Option<Reply> {
        self.remove()
    }

    fn remove(&mut self) -> Option<Reply> {
        let shard = self.thread % SHARD_COUNT;
        let reply = match std::mem::replace(&mut self.location, ReplyLocation::Taken) {
            ReplyLocation::Held(reply) => Some(reply),
            ReplyLocation::Listed(index) => {
                let mut under_way = self.deadlines.shards[shard].lock();
                under_way.free.push(index);
                under_way.slots[index].take().map(|(_, reply)| reply)
            }
            ReplyLocation::Taken => None,
        };
        if reply.is_some() {
            self.deadlines.progress[shard].1.fetch_add(1, Release);
        }
        reply
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(state) = self.deadlines.threads.get(self.thread) {
            state.answered.store(self.number, Relaxed);
        }
        // The shard lock is released first, since dropping a reply may send `EIO`.
        drop(self.remove());
    }
}

/// A session thread that serves a request. It counts as busy until [`BusyThread::end`].
pub(crate) struct BusyThread<'deadlines> {
    deadlines: &'deadlines Arc<Deadlines>,
    thread: usize,
    /// Which of the requests of the thread this is, counted from 1.
    number: u64,
}

impl BusyThread<'_> {
    /// Applies the deadline to the request until its reply is taken.
    pub(crate) fn watch(&self, reply: Reply) -> PendingReply {
        let Self { deadlines, thread, number } = *self;
        let shard = thread % SHARD_COUNT;
        deadlines.progress[shard].0.fetch_add(1, SeqCst);
        let location = match deadlines.deadline {
            None => ReplyLocation::Held(reply),
            Some(_) => {
                let entry = Some((deadlines.clock.load(Relaxed), reply));
                let mut under_way = deadlines.shards[shard].lock();
                let index = under_way.free.pop().unwrap_or(under_way.slots.len());
                match under_way.slots.get_mut(index) {
                    Some(slot) => *slot = entry,
                    None => under_way.slots.push(entry),
                }
                ReplyLocation::Listed(index)
            }
        };
        PendingReply { deadlines: Arc::clone(deadlines), thread, number, location }
    }

    /// Marks the thread as idle, and returns whether the request was answered.
    pub(crate) fn end(&self) -> bool {
        self.deadlines.threads.get(self.thread).is_some_and(|state| {
            state.busy_since.store(0, Release);
            state.answered.load(Relaxed) == self.number
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use floe_fuse_wire::{Channel, Receipt, RequestBuffer};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, send, socketpair};

    use super::*;

    /// Returns the pending reply of a request of thread 0, and the kernel's end of its channel.
    fn request(deadlines: &Arc<Deadlines>) -> (PendingReply, OwnedFd) {
        watched(&deadlines.enter(0))
    }

    fn watched(busy: &BusyThread<'_>) -> (PendingReply, OwnedFd) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
        let (ours, kernel) = pair.expect("two sockets");
        // STATFS, which consists of a header only.
        let words: [u32; 10] = [40, 17, 7, 0, 1, 0, 0, 0, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        send(&kernel, &bytes, rustix::net::SendFlags::empty()).expect("there is room");
        match Channel::new(ours).receive(&mut RequestBuffer::new(0)).expect("a request") {
            Receipt::Request(received) => (busy.watch(received.reply), kernel),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the error in the reply that the kernel received, if there is one.
    fn refusal(kernel: &OwnedFd) -> Option<i32> {
        let mut reply = [0; 16];
        let (len, _) = recv(kernel, &mut reply[..], RecvFlags::empty()).ok()?;
        (len == 16).then(|| -i32::from_ne_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }

    #[test]
    fn a_request_is_refused_once_its_deadline_has_passed() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        let (early, early_kernel) = request(&deadlines);
        assert_eq!(deadlines.progress(), Progress { waiting: 1, answered: 0 });
        for _ in 0..TICKS_PER_DEADLINE {
            assert_eq!(deadlines.tick(), 0);
        }
        let (late, late_kernel) = request(&deadlines);
        assert_eq!(deadlines.tick(), 1);
        assert_eq!(refusal(&early_kernel), Some(libc::EIO));
        assert_eq!(refusal(&late_kernel), None);
        assert_eq!(deadlines.progress(), Progress { waiting: 1, answered: 1 });
        assert!(early.take().is_none(), "it was answered");
        late.take().expect("it was not").done();
        assert_eq!(refusal(&late_kernel), Some(0));
        assert_eq!(deadlines.progress(), Progress { waiting: 0, answered: 2 });
        assert_eq!((0..20).map(|_| deadlines.tick()).sum::<usize>(), 0, "nothing is under way");
    }

    #[test]
    fn an_unanswered_request_is_refused() {
        for deadline in [None, Some(Duration::from_secs(8))] {
            let deadlines = Arc::new(Deadlines::new(deadline, 1));
            let (pending, kernel) = request(&deadlines);
            drop(pending);
            assert_eq!(refusal(&kernel), Some(libc::EIO), "{deadline:?}");
        }
    }

    #[test]
    fn a_busy_thread_knows_whether_its_own_request_was_answered() {
        let deadlines = Arc::new(Deadlines::new(None, 1));
        let (earlier, _earlier_kernel) = request(&deadlines);
        let busy = deadlines.enter(0);
        drop(earlier);
        assert!(!busy.end());
        let busy = deadlines.enter(0);
        let (pending, _kernel) = watched(&busy);
        pending.take().expect("it was not answered").done();
        assert!(busy.end());
        assert!(!deadlines.enter(0).end());
    }

    #[test]
    fn slots_are_used_again() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        for _ in 0..100 {
            let requests = [request(&deadlines), request(&deadlines)];
            drop(requests);
        }
        let slots: usize = deadlines.shards.iter().map(|shard| shard.lock().slots.len()).sum();
        assert_eq!(slots, 2);
    }

    #[test]
    fn a_thread_is_stuck_once_the_deadline_of_its_request_has_passed() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 2));
        let tick = || (0..20).for_each(|_| _ = deadlines.tick());
        let first = deadlines.enter(0);
        tick();
        let stuck = || [deadlines.is_stuck(0), deadlines.is_stuck(1)];
        assert_eq!(stuck(), [true, false], "the second one is idle");
        let _second = deadlines.enter(1);
        assert_eq!(stuck(), [true, false], "the second one has just begun");
        tick();
        assert_eq!(stuck(), [true, true]);
        first.end();
        assert_eq!(stuck(), [false, true], "the first one is done");
    }

    #[test]
    fn without_a_deadline_nothing_is_kept() {
        let deadlines = Arc::new(Deadlines::new(None, 1));
        let (_pending, _kernel) = request(&deadlines);
        assert!(deadlines.shards.iter().all(|shard| shard.lock().slots.is_empty()));
        assert_eq!(deadlines.tick_interval(), None);
    }
}
