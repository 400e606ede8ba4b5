//! Limits the number of requests in flight to one host.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use floe_remote_cache::REQUEST_BYTES_MAX;
use floe_sync::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::sleep_until};

/// The initial number of requests to a host.
pub(crate) const WINDOW_AT_FIRST: f64 = 6.0;

/// The size of prefetch requests in bytes, before the host is measured.
pub(crate) const PREFETCH_BYTES_AT_FIRST: u64 = 512 << 10;

/// After a decrease, further signs of congestion within this time count as the same congestion.
const DECREASE_INTERVAL: Duration = Duration::from_secs(1);

/// The weight of a new measurement in the moving average.
const MEASUREMENT_WEIGHT: f64 = 0.2;

/// The factor by which the shortest wait for a first byte grows with each request, because the latency may have risen for good.
const FORGETTING: f64 = 1.01;

/// The minimum size of a request, in bytes.
pub(crate) const REQUEST_BYTES_MIN: u64 = 256 << 10;

/// The size in bytes to which requests of readers that wait are rounded: at least, at most, and before the host is measured.
const UNIT_BYTES: (u64, u64) = (16 << 10, 512 << 10);
pub(crate) const UNIT_BYTES_AT_FIRST: u64 = 32 << 10;

/// The intended ratio of the wait for the first byte to the transfer of a unit.
const WAIT_TO_UNIT: f64 = 6.0;

/// The intended ratio of transfer time to the wait for the first byte: a fifth of the time is waiting.
const TRANSFER_TO_WAIT: f64 = 4.0;

/// The limits of all hosts.
pub(crate) struct HostLimits {
    hosts: Mutex<HashMap<String, Arc<HostLimit>>>,
    window_max: usize,
}

/// Limits the number of requests in flight to one host by additive increase, multiplicative decrease. Demand goes
/// first, and can cancel a background request to take its slot.
pub(crate) struct HostLimit {
    state: Mutex<State>,
    changed: Notify,
    window_max: f64,
}

struct State {
    window: f64,
    next_id: u64,
    urgent: VecDeque<u64>,
    background: VecDeque<u64>,
    /// The requests in flight; background requests have a handle that cancels them.
    running: BTreeMap<u64, Option<Arc<Notify>>>,
    decreased: Option<Instant>,
    paused_until: Option<Instant>,
    /// The shortest wait for the first byte. Longer waits come from queues that our own requests cause.
    first_byte_s: Option<f64>,
    /// The bandwidth of one connection after the first byte.
    bytes_per_s: Option<f64>,
}

/// A request that waits or is in flight. Dropping it frees the slot.
pub(crate) struct Slot {
    limit: Arc<HostLimit>,
    id: u64,
    preempt: Option<Arc<Notify>>,
}

impl HostLimits {
    pub(crate) fn new(window_max: usize) -> Self {
        Self { hosts: Mutex::default(), window_max: window_max.max(1) }
    }

    /// The limit of the host of this name.
    pub(crate) fn of(&self, host: &str) -> Arc<HostLimit> {
        let mut hosts = self.hosts.lock();
        let limit = hosts.entry(host.to_owned()).or_insert_with(|| Arc::new(HostLimit::new(self.window_max as f64)));
        Arc::clone(limit)
    }
}

impl HostLimit {
    fn new(window_max: f64) -> Self {
        let state = State {
            window: WINDOW_AT_FIRST.min(window_max),
            next_id: 0,
            urgent: VecDeque::new(),
            background: VecDeque::new(),
            running: BTreeMap::new(),
            decreased: None,
            paused_until: None,
            first_byte_s: None,
            bytes_per_s: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new(), window_max }
    }

    /// Waits until the queued request may be sent.
    ///
    /// # Errors
    /// The end of the pause that the host asked for, if it is after `latest`.
    pub(crate) async fn acquire(&self, slot: Slot, latest: Option<Instant>) -> Result<Slot, Instant> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let pause = match self.start(slot.id, slot.preempt.as_ref()) {
                Start::Now => return Ok(slot),
                Start::Later => None,
                Start::At(at) if latest.is_some_and(|latest| at > latest) => return Err(at),
                Start::At(at) => Some(at),
            };
            match pause {
                Some(at) => sleep_until(at.into()).await,
                None => changed.await,
            }
        }
    }

    /// Records a successful answer.
    pub(crate) fn went_well(&self, first_byte: Duration, transfer: Duration, bytes: u64) {
        let mut state = self.lock();
        state.window = (state.window + 1.0 / state.window).min(self.window_max);
        let mean = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + MEASUREMENT_WEIGHT * (new - old)));
        let first_byte_s = first_byte.as_secs_f64();
        state.first_byte_s =
            Some(state.first_byte_s.map_or(first_byte_s, |least| (least * FORGETTING).min(first_byte_s)));
        // Small answers arrive with their first byte.
        if bytes >= REQUEST_BYTES_MIN / 4 {
            state.bytes_per_s = mean(state.bytes_per_s, bytes as f64 / transfer.as_secs_f64().max(1e-4));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that the host or the network is overloaded.
    pub(crate) fn is_congested(&self, retry_after: Option<Duration>) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.decreased.is_none_or(|at| now.duration_since(at) >= DECREASE_INTERVAL) {
            state.window = (state.window / 2.0).max(1.0);
            state.decreased = Some(now);
        }
        if let Some(until) = retry_after.and_then(|pause| now.checked_add(pause)) {
            state.paused_until = Some(state.paused_until.map_or(until, |at| at.max(until)));
        }
    }

    /// The size of requests, in bytes, at which most of their time is not waiting; `None` before the host was measured.
    pub(crate) fn request_bytes(&self) -> Option<u64> {
        let state = self.lock();
        let (first_byte_s, bytes_per_s) = state.first_byte_s.zip(state.bytes_per_s)?;
        let bytes = (first_byte_s * bytes_per_s * TRANSFER_TO_WAIT) as u64;
        Some(bytes.clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX).next_power_of_two().min(REQUEST_BYTES_MAX))
    }

    /// The size to which requests of readers that wait are rounded, in bytes: its transfer takes a small part of the wait for
    /// the first byte. `None` before the host was measured.
    pub(crate) fn unit_bytes(&self) -> Option<u64> {
        let state = self.lock();
        let (first_byte_s, bytes_per_s) = state.first_byte_s.zip(state.bytes_per_s)?;
        let bytes = ((first_byte_s * bytes_per_s / WAIT_TO_UNIT) as u64).clamp(UNIT_BYTES.0, UNIT_BYTES.1);
        Some(1 << bytes.ilog2())
    }

    /// The current limit of requests in flight.
    pub(crate) fn window(&self) -> usize {
        self.lock().window as usize
    }

    /// A reader now waits for the request with this number: raises it to demand, so that it can no longer be cancelled.
    pub(crate) fn promote(&self, id: u64) {
        let mut state = self.lock();
        if let Some(running) = state.running.get_mut(&id) {
            *running = None;
        } else if let Some(place) = state.background.iter().position(|queued| *queued == id) {
            state.background.remove(place);
            state.urgent.push_back(id);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Queues a request: an urgent one is demand, others are background.
    pub(crate) fn queue(self: &Arc<Self>, is_urgent: bool) -> Slot {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        if is_urgent {
            state.urgent.push_back(id);
        } else {
            state.background.push_back(id);
        }
        let preempt = (!is_urgent).then(Arc::default);
        Slot { limit: Arc::clone(self), id, preempt }
    }

    fn start(&self, id: u64, preempt: Option<&Arc<Notify>>) -> Start {
        let mut state = self.lock();
        if let Some(at) = state.paused_until {
            if at > Instant::now() {
                return Start::At(at);
            }
            state.paused_until = None;
        }
        let window = state.window as usize;
        let is_urgent = state.urgent.contains(&id);
        let is_next = if is_urgent {
            if state.running.len() >= window {
                // The youngest background request loses the least work.
                if let Some(youngest) = state.running.values().rev().flatten().next() {
                    youngest.notify_one();
                }
                return Start::Later;
            }
            state.urgent.front() == Some(&id)
        } else {
            // One slot is reserved for demand.
            let room = window.saturating_sub(1).max(1);
            state.urgent.is_empty() && state.running.len() < room && state.background.front() == Some(&id)
        };
        if !is_next {
            return Start::Later;
        }
        if is_urgent {
            state.urgent.pop_front()
        } else {
            state.background.pop_front()
        };
        state.running.insert(id, preempt.filter(|_| !is_urgent).cloned());
        drop(state);
        self.changed.notify_waiters();
        Start::Now
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

enum Start {
    Now,
    Later,
    At(Instant),
}

impl Slot {
    /// The number of the request, for [`HostLimit::promote`].
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Completes when demand needs the slot of this request; never for demand itself.
    pub(crate) async fn preempted(&self) {
        match &self.preempt {
            Some(notify) => notify.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.limit.lock();
        if state.running.remove(&self.id).is_none() {
            state.urgent.retain(|id| *id != self.id);
            state.background.retain(|id| *id != self.id);
        }
        drop(state);
        self.limit.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls for the slot once, without waiting.
    fn poll(future: &mut (impl Future<Output = Result<Slot, Instant>> + Unpin)) -> Option<Slot> {
        match std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot.expect("no pause")),
            Poll::Pending => None,
        }
    }

    #[test]
    fn windows_grow_by_one_in_a_round_and_halve_once_a_second() {
        let limit = Arc::new(HostLimit::new(16.0));
        let went_well = || limit.went_well(Duration::from_millis(20), Duration::from_millis(10), 1 << 20);
        (0..7).for_each(|_| went_well());
        assert_eq!(limit.window(), 7);
        (0..1000).for_each(|_| went_well());
        assert_eq!(limit.window(), 16);
        limit.is_congested(None);
        limit.is_congested(None);
        assert_eq!(limit.window(), 8);
    }

    #[test]
    fn requests_grow_with_bandwidth_and_round_trips() {
        for (first_byte_ms, transfer_ms, expected) in
            [(1, 100, REQUEST_BYTES_MIN), (70, 80, 4 << 20), (500, 10, REQUEST_BYTES_MAX)]
        {
            let limit = HostLimit::new(16.0);
            assert_eq!(limit.request_bytes(), None);
            limit.went_well(Duration::from_millis(first_byte_ms), Duration::from_millis(transfer_ms), 1 << 20);
            assert_eq!(limit.request_bytes(), Some(expected), "{first_byte_ms} {transfer_ms}");
            // Waits in queues that our own requests cause are no reason for larger requests.
            limit.went_well(Duration::from_millis(900), Duration::from_millis(transfer_ms), 1 << 20);
            assert_eq!(limit.request_bytes(), Some(expected), "{first_byte_ms} {transfer_ms}");
        }
    }

    #[test]
    fn units_are_small_beside_the_wait() {
        for (first_byte_ms, transfer_ms, expected_kib) in
            [(1, 80, 16), (21, 80, 32), (81, 80, 128), (21, 8, 256), (81, 8, 512)]
        {
            let limit = HostLimit::new(16.0);
            assert_eq!(limit.unit_bytes(), None);
            limit.went_well(Duration::from_millis(first_byte_ms), Duration::from_millis(transfer_ms), 1 << 20);
            assert_eq!(limit.unit_bytes(), Some(expected_kib << 10), "{first_byte_ms} {transfer_ms}");
        }
    }

    #[test]
    fn demand_goes_first_and_cancels_background() {
        let limit = Arc::new(HostLimit::new(3.0));
        let mut first = Box::pin(limit.acquire(limit.queue(false), None));
        let first = poll(&mut first).expect("a place");
        let mut second = Box::pin(limit.acquire(limit.queue(false), None));
        let second = poll(&mut second).expect("a place");
        let mut third = Box::pin(limit.acquire(limit.queue(false), None));
        assert!(poll(&mut third).is_none(), "a place is left for demand");
        let mut demand = Box::pin(limit.acquire(limit.queue(true), None));
        let demand = poll(&mut demand).expect("the place that was left");
        let mut more = Box::pin(limit.acquire(limit.queue(true), None));
        assert!(poll(&mut more).is_none());
        let wanted = |slot: &Slot| {
            let mut wanted = Box::pin(slot.preempted());
            wanted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!wanted(&first) && wanted(&second), "the youngest is cancelled");
        drop(second);
        assert!(poll(&mut third).is_none(), "demand goes first");
        let more = poll(&mut more).expect("the place of the youngest");
        drop((demand, more, first));
        assert!(poll(&mut third).is_some());
    }

    #[test]
    fn background_requests_become_demand_when_a_reader_waits() {
        let limit = Arc::new(HostLimit::new(2.0));
        let mut running = Box::pin(limit.acquire(limit.queue(false), None));
        let running = poll(&mut running).expect("a place");
        let slots: Vec<_> = (0..2).map(|_| limit.queue(false)).collect();
        limit.promote(running.id);
        limit.promote(slots[1].id);
        let start = |slot: &Slot| matches!(limit.start(slot.id, slot.preempt.as_ref()), Start::Now);
        assert!(!start(&slots[0]) && start(&slots[1]), "the one that was promoted has the last place");
        let mut demand = Box::pin(limit.acquire(limit.queue(true), None));
        assert!(poll(&mut demand).is_none());
        let mut wanted = Box::pin(running.preempted());
        assert!(wanted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    #[test]
    fn cancelled_waiters_are_forgotten() {
        let limit = Arc::new(HostLimit::new(1.0));
        let mut first = Box::pin(limit.acquire(limit.queue(true), None));
        let first = poll(&mut first).expect("a place");
        let mut second = Box::pin(limit.acquire(limit.queue(true), None));
        assert!(poll(&mut second).is_none());
        drop(second);
        drop(first);
        assert!(poll(&mut Box::pin(limit.acquire(limit.queue(true), None))).is_some());
    }

    #[test]
    fn pauses_hold_back_only_requests_that_may_wait_for_their_end() {
        let limit = Arc::new(HostLimit::new(4.0));
        limit.is_congested(Some(Duration::from_secs(300)));
        let patient = limit.queue(true);
        assert!(matches!(limit.start(patient.id, None), Start::At(_)), "it waits");
        drop(patient);
        let latest = Instant::now() + Duration::from_secs(60);
        let mut impatient = Box::pin(limit.acquire(limit.queue(true), Some(latest)));
        let polled = impatient.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(end)) if end > latest), "it cannot wait until then");
        limit.is_congested(Some(Duration::MAX));
    }
}
