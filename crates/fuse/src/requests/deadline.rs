//! The deadline of every request.

use std::{
    cell::Cell,
    ffi::CString,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use fuser::Errno;

/// A deadline passes after this many ticks of the coarse clock, so that it is kept to about an eighth.
const TICKS_PER_DEADLINE: u64 = 8;

const SHARD_COUNT: usize = 8;

/// A reply that can refuse its request.
pub(crate) trait Answer: Send + 'static {
    /// Answers with an error.
    fn refuse(self, errno: Errno);
}

macro_rules! answer {
    ($($reply:ident)*) => {
        $(impl Answer for fuser::$reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

answer! { ReplyAttr ReplyData ReplyDirectory ReplyDirectoryPlus ReplyEntry ReplyLseek ReplyXattr }

/// The requests that are under way, and the session threads that serve them.
///
/// Time is a coarse clock that the watchdog ticks, so that a request costs two short locks and no system call.
pub(crate) struct Deadlines {
    /// How long a request may take; none where there is no deadline.
    deadline: Option<Duration>,
    clock: AtomicU64,
    shards: [Mutex<UnderWay>; SHARD_COUNT],
    next_shard: AtomicUsize,
    /// For each session thread one more than the tick at which it began with its request, or 0 where it has none.
    threads: Box<[AtomicU64]>,
    next_thread: AtomicUsize,
}

#[derive(Default)]
struct UnderWay {
    requests: Vec<Option<(u64, Arc<dyn Overdue>)>>,
    free: Vec<usize>,
}

/// A request that can be answered without knowing what it asks.
trait Overdue: Send + Sync {
    fn refuse(&self, errno: Errno) -> bool;
}

impl<R: Answer> Overdue for Mutex<Option<R>> {
    fn refuse(&self, errno: Errno) -> bool {
        let reply = self.lock().unwrap_or_else(PoisonError::into_inner).take();
        let was_open = reply.is_some();
        if let Some(reply) = reply {
            reply.refuse(errno);
        }
        was_open
    }
}

impl Deadlines {
    /// Deadlines for the requests that this many threads serve.
    pub(crate) fn new(deadline: Option<Duration>, thread_count: usize) -> Self {
        Self {
            deadline,
            clock: AtomicU64::new(0),
            shards: Default::default(),
            next_shard: AtomicUsize::new(0),
            threads: (0..thread_count).map(|_| AtomicU64::new(0)).collect(),
            next_thread: AtomicUsize::new(0),
        }
    }

    /// How often [`Deadlines::tick`] is to be called; none where there is no deadline.
    pub(crate) fn tick_interval(&self) -> Option<Duration> {
        self.deadline.map(|deadline| (deadline / TICKS_PER_DEADLINE as u32).max(Duration::from_millis(1)))
    }

    /// Watches over a request from now on, until its reply is taken.
    pub(crate) fn watch<R: Answer>(self: &Arc<Self>, reply: R) -> Watched<R> {
        let reply = Arc::new(Mutex::new(Some(reply)));
        let place = self.deadline.is_some().then(|| {
            let shard = SHARD.with(|shard| {
                if shard.get() == usize::MAX {
                    shard.set(self.next_shard.fetch_add(1, Relaxed) % SHARD_COUNT);
                }
                shard.get()
            });
            let entry = Some((self.clock.load(Relaxed), Arc::clone(&reply) as Arc<dyn Overdue>));
            let mut under_way = lock(&self.shards[shard]);
            let index = match under_way.free.pop() {
                Some(index) => {
                    under_way.requests[index] = entry;
                    index
                }
                None => {
                    under_way.requests.push(entry);
                    under_way.requests.len() - 1
                }
            };
            (shard, index)
        });
        Watched { reply, place: Place { deadlines: Arc::clone(self), watched: place } }
    }

    /// Says that the calling thread, which takes requests, is busy until the visit is dropped.
    pub(crate) fn enter(&self) -> Visit<'_> {
        let thread = THREAD.with(|thread| {
            if thread.get() == usize::MAX {
                thread.set(self.next_thread.fetch_add(1, Relaxed));
                name_this_thread(thread.get());
            }
            thread.get()
        });
        let busy_since = self.threads.get(thread);
        if let Some(busy_since) = busy_since {
            busy_since.store(self.clock.load(Relaxed) + 1, Release);
        }
        Visit { busy_since }
    }

    /// Moves the clock on and answers `EIO` to the requests whose deadline has passed; gives how many.
    pub(crate) fn tick(&self) -> usize {
        let now = self.clock.fetch_add(1, Relaxed) + 1;
        let mut overdue: Vec<Arc<dyn Overdue>> = Vec::new();
        for shard in &self.shards {
            let under_way = lock(shard);
            let requests = under_way.requests.iter().flatten();
            overdue.extend(
                requests.filter(|(since, _)| now - since > TICKS_PER_DEADLINE).map(|(_, reply)| Arc::clone(reply)),
            );
        }
        overdue.into_iter().filter(|request| request.refuse(Errno::EIO)).count()
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

/// Gives a session thread, which the crate `fuser` has started, the name that tools show.
fn name_this_thread(index: usize) {
    if let Ok(name) = CString::new(format!("floe-fuse/{index}")) {
        // Only a help to whoever looks.
        let _ = rustix::thread::set_name(&name);
    }
}

thread_local! {
    /// Which shard this thread puts its requests in.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Which session thread this is.
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Whether this thread has answered a request since it was last asked.
    static HAS_ANSWERED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has answered a request since it last asked this.
pub(crate) fn has_answered() -> bool {
    HAS_ANSWERED.replace(false)
}

/// The reply of a request that has a deadline. Where it is dropped without being taken, the request gets `EIO`.
pub(crate) struct Watched<R: Answer> {
    reply: Arc<Mutex<Option<R>>>,
    place: Place,
}

impl<R: Answer> Watched<R> {
    /// The reply, unless the deadline has passed.
    pub(crate) fn take(self) -> Option<R> {
        drop(self.place);
        lock(&self.reply).take()
    }

    /// A way to fill the reply while it is watched.
    pub(crate) fn filling(&self) -> Filling<R> {
        Filling { reply: Arc::clone(&self.reply) }
    }
}

/// A way to fill a reply that another holds.
pub(crate) struct Filling<R: Answer> {
    reply: Arc<Mutex<Option<R>>>,
}

impl<R: Answer> Filling<R> {
    /// Adds to the reply; none where it was answered, because the deadline has passed.
    pub(crate) fn with<T>(&self, add: impl FnOnce(&mut R) -> T) -> Option<T> {
        lock(&self.reply).as_mut().map(add)
    }
}

/// Where a request stands among those under way.
struct Place {
    deadlines: Arc<Deadlines>,
    /// The shard and the index in it; none where there is no deadline.
    watched: Option<(usize, usize)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        HAS_ANSWERED.set(true);
        if let Some((shard, index)) = self.watched {
            let mut under_way = lock(&self.deadlines.shards[shard]);
            under_way.requests[index] = None;
            under_way.free.push(index);
        }
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
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    struct Noted(Sender<i32>);

    impl Answer for Noted {
        fn refuse(self, errno: Errno) {
            self.0.send(errno.code()).expect("the test listens");
        }
    }

    fn request(deadlines: &Arc<Deadlines>) -> (Watched<Noted>, Receiver<i32>) {
        let (sender, receiver) = channel();
        (deadlines.watch(Noted(sender)), receiver)
    }

    #[test]
    fn a_request_is_refused_once_its_deadline_has_passed() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        let (early, refused_early) = request(&deadlines);
        for _ in 0..TICKS_PER_DEADLINE {
            assert_eq!(deadlines.tick(), 0);
        }
        let (late, refused_late) = request(&deadlines);
        assert_eq!(deadlines.tick(), 1);
        assert_eq!(refused_early.try_recv(), Ok(libc::EIO));
        assert!(refused_late.try_recv().is_err());
        assert!(early.take().is_none(), "it was answered");
        assert!(late.take().is_some(), "it was not");
        assert_eq!((0..20).map(|_| deadlines.tick()).sum::<usize>(), 0, "nothing is under way");
    }

    #[test]
    fn places_are_used_again() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 1));
        for _ in 0..100 {
            let requests = [request(&deadlines), request(&deadlines)];
            drop(requests);
        }
        let places: usize = deadlines.shards.iter().map(|shard| lock(shard).requests.len()).sum();
        assert_eq!(places, 2);
    }

    #[test]
    fn threads_are_stuck_when_none_is_left() {
        let deadlines = Arc::new(Deadlines::new(Some(Duration::from_secs(8)), 2));
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let visit = deadlines.enter();
            scope.spawn(|| {
                for _ in 0..20 {
                    deadlines.tick();
                }
                assert!(!deadlines.all_threads_are_stuck(), "one is idle");
                let _visit = deadlines.enter();
                assert!(!deadlines.all_threads_are_stuck(), "one has just begun");
                for _ in 0..20 {
                    deadlines.tick();
                }
                assert!(deadlines.all_threads_are_stuck());
                barrier.wait();
                barrier.wait();
                assert!(!deadlines.all_threads_are_stuck(), "one is done");
            });
            barrier.wait();
            drop(visit);
            barrier.wait();
        });
    }

    #[test]
    fn without_a_deadline_nothing_is_kept() {
        let deadlines = Arc::new(Deadlines::new(None, 1));
        let (watched, _refused) = request(&deadlines);
        assert!(watched.place.watched.is_none());
        assert_eq!(deadlines.tick_interval(), None);
    }
}
