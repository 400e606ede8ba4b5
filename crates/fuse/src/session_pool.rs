//! The session threads, which take the requests of any number of connections: which of them listen, rest, block on the source, or
//! poll for the next request.

mod arrivals;
mod busy_polling;
mod gate;
mod listeners;
mod lone_caller;
mod member;
mod turn;
mod watchdog;

use std::{
    collections::HashMap,
    fmt, io,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::Duration,
};

use floe_engine::{AdoptedThread, BlockingPermits, Engine, Volume};
use floe_fuse_wire::{Receipt, RequestBuffer};
use floe_image::start_error;
use floe_sync::{Mutex, RwLock};

use self::{
    arrivals::Arrivals,
    busy_polling::BusyPolling,
    listeners::Listeners,
    lone_caller::LoneCaller,
    turn::Next,
    watchdog::{Alarm, Left, watch},
};
pub(crate) use self::{
    busy_polling::NextRequest,
    member::{Member, Service},
    turn::{SessionThread, Turn},
};
use crate::connection::REQUEST_BYTES_MAX;

/// How many requests of one connection a session thread takes in turn before it looks at those of others, which takes a system
/// call.
const IN_TURN_MAX: usize = 8;

/// The session threads of a process, which serve any number of mounts ([`MountHandles::sessions`](crate::MountHandles)). Clones
/// share the threads.
///
/// A mount takes no thread of its own and, while no request is in progress, no CPU time. The threads end when all clones were
/// dropped and the last mount has ended.
#[derive(Clone)]
pub struct Sessions(Arc<Handle>);

/// Lets the pool end once no mount can join it any more.
struct Handle(Arc<SessionPool>);

impl Sessions {
    /// Starts `thread_count` session threads for mounts of volumes of this engine. Each polls up to `busy_polling` for the
    /// next request before it sleeps ([`MountOptions::busy_polling`](crate::MountOptions)).
    ///
    /// # Errors
    /// The operating system refuses threads or descriptors.
    pub fn start(
        engine: &Arc<Engine>,
        thread_count: NonZero<usize>,
        busy_polling: Option<Duration>,
    ) -> io::Result<Self> {
        let sessions = Self::without_threads(thread_count.get(), busy_polling, false)?;
        for _ in 0..thread_count.get() {
            sessions.pool().start_thread(engine, None)?;
        }
        Ok(sessions)
    }

    /// Creates a pool for up to `thread_count_max` threads, which are to be started; for one mount if it `is_own`.
    pub(crate) fn without_threads(
        thread_count_max: usize,
        busy_polling: Option<Duration>,
        is_own: bool,
    ) -> io::Result<Self> {
        let pool = Arc::new(SessionPool::new(thread_count_max, busy_polling, is_own)?);
        let sessions = Self(Arc::new(Handle(Arc::clone(&pool))));
        thread::Builder::new().name("floe-watch".to_owned()).spawn(move || watch(&pool)).map_err(start_error)?;
        Ok(sessions)
    }

    pub(crate) fn pool(&self) -> &Arc<SessionPool> {
        &self.0.0
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let pool = &self.0;
        pool.is_closed.store(true, SeqCst);
        pool.end_if_unused(&pool.members.read());
    }
}

/// The session threads, organised as leader and followers. One thread listens for requests of all connections as long as one
/// is enough. Before a thread blocks on the source, it promotes one of the resting threads. A thread stays with a connection as
/// long as requests come, and looks at the others now and then.
pub(crate) struct SessionPool {
    arrivals: Arc<Arrivals>,
    busy_polling: BusyPolling,
    lone_caller: Arc<LoneCaller>,
    listeners: Arc<Listeners>,
    permits: Arc<BlockingPermits>,
    /// The number of permits that one volume may have.
    volume_permits_max: usize,
    alarm: Alarm,
    members: RwLock<HashMap<u64, Arc<Member>>>,
    left: Mutex<Vec<Left>>,
    next_number: AtomicU64,
    /// Whether no connection can join any more.
    is_closed: AtomicBool,
    is_over: AtomicBool,
    thread_count_max: usize,
    /// How many requests of one connection a thread takes in turn.
    in_turn_max: usize,
}

impl SessionPool {
    fn new(thread_count_max: usize, busy_polling: Option<Duration>, is_own: bool) -> io::Result<Self> {
        let arrivals = Arc::new(Arrivals::new()?);
        let (listeners, lone_caller) = (Arc::new(Listeners::new(Arc::clone(&arrivals))), Arc::<LoneCaller>::default());
        let (promoting, lone) = (Arc::clone(&listeners), Arc::clone(&lone_caller));
        // Half of the threads may block at the same time, and of these, half for one of several volumes.
        let permit_count = thread_count_max / 2;
        Ok(Self {
            busy_polling: BusyPolling::new(busy_polling, Arc::clone(&arrivals)),
            arrivals,
            lone_caller,
            listeners,
            permits: Arc::new(BlockingPermits::new(permit_count, move || promoting.promote(&lone))),
            volume_permits_max: if is_own { permit_count } else { permit_count.div_ceil(2) },
            alarm: Alarm::default(),
            members: RwLock::default(),
            left: Mutex::default(),
            next_number: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            thread_count_max,
            in_turn_max: if is_own { usize::MAX } else { IN_TURN_MAX },
        })
    }

    /// The maximum number of threads.
    pub(crate) fn thread_count_max(&self) -> usize {
        self.thread_count_max
    }

    /// Starts a session thread, which `engine` schedules.
    ///
    /// # Errors
    /// The operating system refuses to start a thread.
    pub(crate) fn start_thread(self: &Arc<Self>, engine: &Arc<Engine>, name: Option<&str>) -> io::Result<()> {
        let number = self.listeners.add();
        let name = name.map_or_else(|| format!("floe-fuse/{number}"), str::to_owned);
        let pool = Arc::clone(self);
        let started = AdoptedThread::start(engine, name, None, move |adopted| pool.run(number, adopted));
        started.map_err(|error| {
            self.listeners.remove();
            start_error(error)
        })
    }

    /// Lets session threads without rings block on the sources of a volume.
    pub(crate) fn permit_blocking(&self, volume: &Volume) {
        volume.permit_blocking(&self.permits, self.volume_permits_max);
    }

    /// Adds a connection. If it `is_paused`, no request of it is taken before [`SessionPool::resume`]. Returns its number.
    ///
    /// # Errors
    /// The operating system refuses it.
    pub(crate) fn join(&self, member: Member, is_paused: bool) -> io::Result<u64> {
        let number = self.next_number.fetch_add(1, Relaxed);
        let member = Arc::new(Member { number, ..member });
        let mut members = self.members.write();
        if is_paused {
            member.gate.close(Duration::ZERO);
        } else {
            self.listen_to(&member)?;
        }
        members.insert(number, member);
        Ok(number)
    }

    /// Takes no requests of a connection until [`SessionPool::resume`]. Returns `false` if threads still take requests after
    /// `patience`.
    pub(crate) fn pause(&self, number: u64, patience: Duration) -> bool {
        self.member(number).is_none_or(|member| {
            self.ignore(&member);
            member.gate.close(patience)
        })
    }

    /// Takes requests of a connection again.
    pub(crate) fn resume(&self, number: u64) {
        // Locked, so that the connection does not leave meanwhile.
        let members = self.members.read();
        let Some(member) = members.get(&number).filter(|member| member.gate.is_closed()).cloned() else { return };
        member.gate.open();
        let listening = self.listen_to(&member);
        drop(members);
        if let Err(error) = listening {
            self.leave(&member, Err(error));
        }
    }

    /// Removes a connection that another process serves.
    pub(crate) fn dismiss(&self, number: u64) {
        drop(self.remove(number, |_| {}));
    }

    /// Notes that the kernel has ended the connection of a member, which then leaves.
    fn end(&self, member: &Member) {
        match member.receive(0, &mut RequestBuffer::new(REQUEST_BYTES_MAX)) {
            Ok(_) => self.leave(member, Ok(())),
            Err(error) => self.leave(member, Err(error)),
        }
    }

    /// Removes a member whose connection has ended or failed.
    fn leave(&self, member: &Member, result: io::Result<()>) {
        // This may take a while; the thread does not listen meanwhile.
        self.listeners.begin();
        let removed = self.remove(member.number, |removed| self.left.lock().push(Left::of(removed)));
        if let Some(removed) = removed {
            removed.service.end(result);
            self.alarm.ring();
        }
        self.listeners.end();
    }

    fn remove(&self, number: u64, note: impl FnOnce(&Member)) -> Option<Arc<Member>> {
        let mut members = self.members.write();
        let removed = members.remove(&number)?;
        self.ignore(&removed);
        note(&removed);
        self.end_if_unused(&members);
        Some(removed)
    }

    fn listen_to(&self, member: &Member) -> io::Result<()> {
        member.channels.first().map_or(Ok(()), |channel| self.arrivals.add(member.number, channel))
    }

    fn ignore(&self, member: &Member) {
        member.channels.iter().take(1).for_each(|channel| self.arrivals.remove(channel));
    }

    /// Lets the threads end if there are no members, and none can join any more.
    fn end_if_unused(&self, members: &HashMap<u64, Arc<Member>>) {
        if members.is_empty() && self.is_closed.load(SeqCst) {
            self.is_over.store(true, SeqCst);
            self.arrivals.end();
            self.listeners.end_all();
            self.alarm.end();
        }
    }

    fn member(&self, number: u64) -> Option<Arc<Member>> {
        self.members.read().get(&number).cloned()
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.read().values().cloned().collect()
    }

    /// Takes and serves requests until the pool ends. The calling thread, `adopted`, becomes session thread `number`.
    fn run(self: Arc<Self>, number: usize, adopted: AdoptedThread) {
        let thread = SessionThread::new(Arc::clone(&self), number, adopted);
        let mut buffer = RequestBuffer::new(REQUEST_BYTES_MAX);
        // The connection of the last request, and how many of its requests were taken in turn. While this thread listens or
        // rests, it keeps no connection.
        let mut last: Option<(Arc<Member>, usize)> = None;
        while !self.is_over.load(SeqCst) {
            let stays = last.is_some();
            let next = last.take().or_else(|| self.arrivals.wait().and_then(|number| Some((self.member(number)?, 0))));
            let Some((member, taken)) = next else { continue };
            match member.receive(number, &mut buffer) {
                Ok(Receipt::Request(received)) => {
                    // A panic drops the reply, which then sends EIO.
                    let _ = catch_unwind(AssertUnwindSafe(|| member.service.serve(&thread, received)));
                    let rests = match thread.take_next() {
                        Next::Look => false,
                        Next::RestOrLook => self.listeners.should_rest(),
                        Next::RestOrListen => true,
                    };
                    if rests {
                        drop(member);
                        self.listeners.rest();
                    } else if taken + 1 < self.in_turn_max {
                        last = Some((member, taken + 1));
                    }
                }
                Ok(Receipt::Nothing | Receipt::Interrupted) => {
                    drop(member);
                    if !stays {
                        // Another thread took it.
                        self.listeners.rest();
                    }
                }
                Ok(Receipt::Unmounted) => self.leave(&member, Ok(())),
                Err(error) => self.leave(&member, Err(error)),
            }
        }
    }
}
