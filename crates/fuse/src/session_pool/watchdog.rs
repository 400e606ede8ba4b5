//! The watchdog of a pool: deadlines, connections that end while no thread listens, and session threads that do not end.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use floe_sync::{Condvar, Mutex};

use super::{Member, Service, SessionPool};
use crate::connection::Connection;

/// The longest interval of the watchdog while requests are in progress. If all session threads are stuck, requests are refused
/// at this interval; if none listens, a resting one does after this time. Short deadlines shorten it.
const INTERVAL_MAX: Duration = Duration::from_millis(50);

/// The interval at which the watchdog looks whether CPUs are short.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long session threads may take to end after the mount ended.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Wakes the watchdog, which sleeps while nothing is in progress.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    is_awake: AtomicBool,
    /// Whether the pool has ended.
    is_over: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// Wakes the watchdog, if it sleeps. The caller has noted before what is in progress.
    pub(super) fn ring(&self) {
        // The watchdog stores and loads in the opposite order, so one of the two sees the other.
        if !self.is_awake.load(SeqCst) && !self.is_awake.swap(true, SeqCst) {
            let _is_over = self.is_over.lock();
            self.rung.notify_one();
        }
    }

    /// Lets the watchdog end.
    pub(super) fn end(&self) {
        *self.is_over.lock() = true;
        self.rung.notify_one();
    }

    /// Sleeps until the alarm rings.
    fn wait(&self) {
        let is_over = self.is_over.lock();
        drop(self.rung.wait_while(is_over, |is_over| !*is_over && !self.is_awake.load(SeqCst)));
    }

    /// Sets whether the next [`Alarm::wait`] returns at once.
    fn stay_awake(&self, is_awake: bool) {
        self.is_awake.store(is_awake, SeqCst);
    }

    fn is_over(&self) -> bool {
        *self.is_over.lock()
    }
}

/// A connection that the pool no longer serves.
pub(super) struct Left {
    connection: Arc<Connection>,
    /// Dropped when the last thread has ended its work for the connection.
    service: Weak<dyn Service>,
    waited: Duration,
}

impl Left {
    /// The rest of a member that leaves the pool.
    pub(super) fn of(member: &Member) -> Self {
        let service = Arc::downgrade(&member.service);
        Self { connection: Arc::clone(&member.connection), service, waited: Duration::ZERO }
    }

    /// Returns whether there is more to do after `interval` more.
    fn tick(&mut self, interval: Duration) -> bool {
        if !self.connection.has_ended() {
            // The service failed. Readers and unmounts would wait without end.
            self.connection.refuse_pending();
            return true;
        }
        let Some(service) = self.service.upgrade() else { return false };
        self.waited += interval;
        if self.waited >= END_PATIENCE {
            service.note_stuck();
            return false;
        }
        true
    }
}

/// Watches a pool until it has ended.
pub(super) fn watch(pool: &SessionPool) {
    loop {
        pool.alarm.wait();
        while watch_while_busy(pool) {}
        if pool.alarm.is_over() && pool.left.lock().is_empty() {
            return;
        }
    }
}

/// Watches a pool until nothing is in progress. Returns whether something has begun meanwhile.
fn watch_while_busy(pool: &SessionPool) -> bool {
    pool.alarm.stay_awake(true);
    let (mut elapsed, mut answered_before) = (Duration::ZERO, None);
    let mut members = pool.members();
    members.iter().for_each(|member| member.service.look_at_cpus());
    loop {
        let ticks = members.iter().filter_map(|member| member.deadlines.tick_interval());
        let interval = ticks.min().unwrap_or(INTERVAL_MAX).min(INTERVAL_MAX);
        // The watchdog must not keep a connection that ends meanwhile.
        drop(members);
        thread::sleep(interval);
        elapsed += interval;
        members = pool.members();
        for member in &members {
            if member.deadlines.tick_interval().is_some_and(|tick| has_passed(tick, elapsed, interval)) {
                member.service.note_overdue(member.deadlines.tick());
            }
            if has_passed(LOOK_INTERVAL, elapsed, interval) {
                member.service.look_at_cpus();
            }
        }
        find_listener(pool, &members);
        pool.left.lock().retain_mut(|left| left.tick(interval));
        let answered = Some(members.iter().map(|member| member.deadlines.progress().answered).sum::<u64>());
        if answered == answered_before && !is_busy(pool, &members) {
            // Requests may now come from anywhere, several at once.
            pool.listeners.wake_all();
            pool.alarm.stay_awake(false);
            // A request that begins from now on rings.
            return is_busy(pool, &pool.members());
        }
        answered_before = answered;
    }
}

/// Whether a multiple of `period` lies in the last `interval` before `elapsed`.
fn has_passed(period: Duration, elapsed: Duration, interval: Duration) -> bool {
    let count = |time: Duration| time.as_nanos() / period.as_nanos().max(1);
    count(elapsed) != count(elapsed.saturating_sub(interval))
}

/// Whether requests or ends of connections are in progress.
fn is_busy(pool: &SessionPool, members: &[Arc<Member>]) -> bool {
    pool.listeners.serving_count() > 0
        || members.iter().any(|member| member.deadlines.progress().waiting > 0)
        || !pool.left.lock().is_empty()
}

/// Makes a resting thread listen if none does. If there is none, does what a listening thread would: lets the connections go
/// that have ended, and refuses requests if all session threads are stuck.
fn find_listener(pool: &SessionPool, members: &[Arc<Member>]) {
    pool.listeners.replace();
    let thread_count = pool.listeners.thread_count();
    if thread_count == 0 || pool.listeners.serving_count() < thread_count {
        return;
    }
    let open = || members.iter().filter(|member| !member.gate.is_closed());
    open().filter(|member| member.connection.has_ended()).for_each(|member| pool.end(member));
    let is_stuck = |thread| members.iter().any(|member| member.deadlines.is_stuck(thread));
    if (0..thread_count).all(is_stuck) {
        open().for_each(|member| member.connection.refuse_pending());
    }
}
