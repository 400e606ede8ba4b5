//! The deadline of every request.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use floe_fuse_wire::{Errno, Reply};

/// A deadline passes after this many ticks of the coarse clock, so that it is kept to about an eighth.
const TICKS_PER_DEADLINE: u64 = 8;

const SHARD_COUNT: usize = 8;

/// The requests that are under way, and the session threads that serve them.
///
/// Time is a coarse clock that the watchdog ticks, so that a request costs two short locks and no system call.
pub(crate) struct Deadlines {
    /// How long a request may take; none where there is no deadline.
    deadline: Option<Duration>,
    clock: AtomicU64,
    shards: [Mutex<UnderWay>; SHARD_COUNT],
    /// For each session thread one more than the tick at which it began with its request, or 0 where it has none.
    threads: Box<[AtomicU64]>,
}

/// Places of replies that are owed. A place whose reply was taken stays until its [`Watched`] is gone.
#[derive(Default)]
struct UnderWay {
    places: Vec<Option<(u64, Reply)>>,
    free: Vec<usize>,
}

impl Deadlines {
    /// Deadlines for the requests that this many threads serve.
    pub(crate) fn new(deadline: Option<Duration>, thread_count: usize) -> Self {
        Self {
            deadline,
            clock: AtomicU64::new(0),
            shards: Default::default(),
            threads: (0..thread_count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// How often [`Deadlines::tick`] is to be called; none where there is no deadline.
    pub(crate) fn tick_interval(&self) -> Option<Duration> {
        self.deadline.map(|deadline| (deadline / TICKS_PER_DEADLINE as u32).max(Duration::from_millis(1)))
    }

    /// Watches over a request that a session thread has taken, from now on until its reply is taken.
    pub(crate) fn watch(self: &Arc<Self>, thread: usize, reply: Reply) -> Watched {
        let shard = thread % SHARD_COUNT;
        let place = match self.deadline {
            None => Place::Held(reply),
            Some(_) => {
                let entry = Some((self.clock.load(Relaxed), reply));
                let mut under_way = lock(&self.shards[shard]);
                let index = under_way.free.pop().unwrap_or(under_way.places.len());
                match under_way.places.get_mut(index) {
                    Some(place) => *place = entry,
                    None => under_way.places.push(entry),
                }
                Place::Listed(index)
            }
        };
        Watched { deadlines: Arc::clone(self), shard, place }
    }

    /// Says that a session thread is busy until the visit is dropped.
    pub(crate) fn enter(&self, thread: usize) -> Visit<'_> {
        let busy_since = self.threads.get(thread);
        if let Some(busy_since) = busy_since {
            busy_since.store(self.clock.load(Relaxed) + 1, Release);
        }
        Visit { busy_since }
    }

    /// Moves the clock on and answers `EIO` to the requests whose deadline has passed; gives how many.
    pub(crate) fn tick(&self) -> usize {
        let now = self.clock.fetch_add(1, Relaxed) + 1;
        let mut overdue = Vec::new();
        for shard in &self.shards {
            for place in &mut lock(shard).places {
                if place.as_ref().is_some_and(|(since, _)| now - since > TICKS_PER_DEADLINE) {
                    overdue.extend(place.take());
                }
            }
        }
        let count = overdue.len();
        overdue.into_iter().for_each(|(_, reply)| reply.refuse(Errno::IO));
        count
    }

    /// Whether every session thread has been busy with one request for longer than the deadline, so that none is left to
    /// take the next.
    pub(crate) fn all_threads_are_stuck(&self) -> bool {
        let now = self.clock.load(Relaxed);
        !self.threads.is_empty()
            && self.threads.iter().all(|busy_since| match busy_since.load(Acquire) {
                0 => false,
                since => now.saturating_sub(since - 1) > TICKS_PER_DEADLINE,
            })
    }
}

thread_local! {
    /// Whether this thread has answered a request since it was last asked.
    static HAS_ANSWERED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has answered a request since it last asked this.
pub(crate) fn has_answered() -> bool {
    HAS_ANSWERED.replace(false)
}

/// The reply of a request that has a deadline. Where it is dropped without being taken, the request gets `EIO`.
pub(crate) struct Watched {
    deadlines: Arc<Deadlines>,
    shard: usize,
    place: Place,
}

/// Where a reply is.
enum Place {
    /// Here, as there is no deadline.
    Held(Reply),
    /// Among those under way in its shard, unless its deadline has passed.
    Listed(usize),
    Taken,
}

impl Watched {
    /// The reply, unless the deadline has passed.
    pub(crate) fn take(mut self) -> Option<Reply> {
        self.remove()
    }

    fn remove(&mut self) -> Option<Reply> {
        match std::mem::replace(&mut self.place, Place::Taken) {
            Place::Held(reply) => Some(reply),
            Place::Listed(index) => {
                let mut under_way = lock(&self.deadlines.shards[self.shard]);
                under_way.free.push(index);
                under_way.places[index].take().map(|(_, reply)| reply)
            }
            Place::Taken => None,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        HAS_ANSWERED.set(true);
        // Without its lock, as it may have to be answered.
        drop(self.remove());
    }
}

/// A session thread's work on one request.
pub(crate) struct Visit<'deadlines> {
    busy_since: Option<&'deadlines AtomicU64>,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(busy_since) = self.busy_since {
            busy_since.store(0, Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use floe_fuse_wire::{Channel, Receipt, RequestBuffer};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, send, socketpair};

    use super::*;

    /// A request that is watched, and the kernel's end of its channel.
    fn request(deadlines: &Arc<Deadlines>) -> (Watched, OwnedFd) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
        let (ours, kernel) = pair.expect("two sockets");
        // STATFS, which has a header alone.
        let words: [u32; 10] = [40, 17, 7, 0, 1, 0, 0, 0, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        send(&kernel, &bytes, rustix::net::SendFlags::empty()).expect("there is room");
        match Channel::new(ours).receive(&mut RequestBuffer::new(0)).expect("a request") {
            Receipt::Request(received) => (deadlines.watch(0, received.reply), kernel),
            other => panic!("{other:?}"),
        }
    }

    /// The error in the reply that the kernel got, if it got one.
    fn refusal(kernel: &OwnedFd) -> Option<i32> {
        let mut reply = [0; 16];
        let (len, _) = recv(kernel, &mut reply[..], RecvFlags::empty()).ok()?;
        (len == 16).then(|| -i32::from_ne_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }

    #[test]
    fn a_request_is_refused_once_its_deadline_has_passed() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        let (early, early_kernel) = request(&deadlines);
        for _ in 0..TICKS_PER_DEADLINE {
            assert_eq!(deadlines.tick(), 0);
        }
        let (late, late_kernel) = request(&deadlines);
        assert_eq!(deadlines.tick(), 1);
        assert_eq!(refusal(&early_kernel), Some(libc::EIO));
        assert_eq!(refusal(&late_kernel), None);
        assert!(early.take().is_none(), "it was answered");
        late.take().expect("it was not").done();
        assert_eq!(refusal(&late_kernel), Some(0));
        assert_eq!((0..20).map(|_| deadlines.tick()).sum::<usize>(), 0, "nothing is under way");
    }

    #[test]
    fn a_request_that_nobody_answers_is_refused() {
        for deadline in [None, Some(Duration::from_secs(8))] {
            let deadlines = Arc::new(Deadlines::new(deadline, 1));
            let (watched, kernel) = request(&deadlines);
            has_answered();
            drop(watched);
            assert_eq!(refusal(&kernel), Some(libc::EIO), "{deadline:?}");
            assert!(has_answered());
        }
    }

    #[test]
    fn places_are_used_again() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        for _ in 0..100 {
            let requests = [request(&deadlines), request(&deadlines)];
            drop(requests);
        }
        let places: usize = deadlines.shards.iter().map(|shard| lock(shard).places.len()).sum();
        assert_eq!(places, 2);
    }

    #[test]
    fn threads_are_stuck_when_none_is_left() {
        let deadlines = Deadlines::new(Some(Duration::from_secs(8)), 2);
        let tick = || (0..20).for_each(|_| _ = deadlines.tick());
        let first = deadlines.enter(0);
        tick();
        assert!(!deadlines.all_threads_are_stuck(), "one is idle");
        let _second = deadlines.enter(1);
        assert!(!deadlines.all_threads_are_stuck(), "one has just begun");
        tick();
        assert!(deadlines.all_threads_are_stuck());
        drop(first);
        assert!(!deadlines.all_threads_are_stuck(), "one is done");
    }

    #[test]
    fn without_a_deadline_nothing_is_kept() {
        let deadlines = Arc::new(Deadlines::new(None, 1));
        let (_watched, _kernel) = request(&deadlines);
        assert!(deadlines.shards.iter().all(|shard| lock(shard).places.is_empty()));
        assert_eq!(deadlines.tick_interval(), None);
    }
}
