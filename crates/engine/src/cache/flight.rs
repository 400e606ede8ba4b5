//! Single flight: one piece of work whose result many threads await.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_image::{Error, Result};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// One piece of work whose result many threads await. The end of the work wakes one waiter and each waiter wakes the
/// next, so that they never contend for the lock all at once.
pub(crate) struct Flight<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

struct State<T> {
    result: Option<Result<T>>,
    waiter_count: usize,
    subscribers: Vec<Subscriber<T>>,
}

/// A callback for the result, run by the thread that ends the work.
pub(crate) type Subscriber<T> = Box<dyn FnOnce(Result<T>) + Send>;

impl<T> fmt::Debug for Flight<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Flight").finish_non_exhaustive()
    }
}

/// Counters of all flights of a cache.
#[derive(Debug, Default)]
pub(crate) struct FlightCounters {
    /// Flights that ended.
    pub(crate) ended: AtomicU64,
    /// Threads that slept until a flight ended.
    pub(crate) waits: AtomicU64,
    /// Wake-ups sent.
    pub(crate) wakes: AtomicU64,
}

impl<T: Clone> Flight<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State { result: None, waiter_count: 0, subscribers: Vec::new() }),
            ended: Condvar::new(),
        }
    }

    /// Sleeps until the work ends and returns its result.
    pub(crate) fn wait(&self, counters: &FlightCounters) -> Result<T> {
        let mut state = self.lock();
        if state.result.is_none() {
            counters.waits.fetch_add(1, Relaxed);
            state.waiter_count += 1;
            while state.result.is_none() {
                state = self.ended.wait(state);
            }
            state.waiter_count -= 1;
            let result = state.result.clone();
            self.wake_next(state, counters);
            return result.unwrap_or(Err(Error::Cancelled));
        }
        state.result.clone().unwrap_or(Err(Error::Cancelled))
    }

    /// Whether the work has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().result.is_some()
    }

    /// Registers `subscriber` for the result. The thread that ends the work calls it; if the work has ended, it is
    /// called here.
    pub(crate) fn subscribe(&self, subscriber: Subscriber<T>) {
        let mut state = self.lock();
        match state.result.clone() {
            Some(result) => {
                drop(state);
                subscriber(result);
            }
            None => state.subscribers.push(subscriber),
        }
    }

    /// Ends the work with `result`. Only the first call counts.
    pub(crate) fn end(&self, result: Result<T>, counters: &FlightCounters) {
        let mut state = self.lock();
        if state.result.is_some() {
            return;
        }
        state.result = Some(result.clone());
        counters.ended.fetch_add(1, Relaxed);
        let subscribers = std::mem::take(&mut state.subscribers);
        self.wake_next(state, counters);
        subscribers.into_iter().for_each(|subscriber| subscriber(result.clone()));
    }

    fn wake_next(&self, state: MutexGuard<'_, State<T>>, counters: &FlightCounters) {
        let waiter_count = state.waiter_count;
        drop(state);
        if waiter_count > 0 {
            counters.wakes.fetch_add(1, Relaxed);
            self.ended.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;

    #[test]
    fn every_waiter_gets_the_result_and_no_wake_is_wasted() {
        let (flight, counters) = (Arc::new(Flight::new()), Arc::new(FlightCounters::default()));
        let waiters: Vec<_> = (0..16)
            .map(|_| {
                let (flight, counters) = (Arc::clone(&flight), Arc::clone(&counters));
                thread::spawn(move || flight.wait(&counters))
            })
            .collect();
        while counters.waits.load(Relaxed) < 16 {
            thread::sleep(Duration::from_millis(1));
        }
        flight.end(Ok(7), &counters);
        flight.end(Ok(8), &counters);
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic").expect("a result"), 7);
        }
        assert_eq!(counters.ended.load(Relaxed), 1);
        assert!(counters.wakes.load(Relaxed) <= 16, "one wake for each waiter");
        assert_eq!(flight.wait(&counters).expect("a result"), 7);
    }
}
