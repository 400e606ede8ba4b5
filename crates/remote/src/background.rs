//! Background requests in progress: prefetch that becomes demand when a reader waits for it.

use std::sync::Arc;

use floe_image::ByteRange;
use floe_sync::Mutex;

use crate::host_limit::{HostLimit, Slot};

/// The background requests in progress.
#[derive(Default)]
pub(crate) struct BackgroundRequests {
    requests: Mutex<Vec<Arc<Background>>>,
}

/// A request in the list. Dropping it removes it from the list.
pub(crate) struct BackgroundRequest<'list> {
    list: &'list BackgroundRequests,
    request: Arc<Background>,
}

/// A request with all of its attempts.
struct Background {
    range: ByteRange,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether a reader waits for it.
    is_urgent: bool,
    /// The place of the last attempt.
    attempt: Option<(Arc<HostLimit>, u64)>,
}

impl BackgroundRequests {
    /// Adds a request for `range`.
    pub(crate) fn add(&self, range: ByteRange) -> BackgroundRequest<'_> {
        let request = Arc::new(Background { range, state: Mutex::default() });
        self.requests.lock().push(Arc::clone(&request));
        BackgroundRequest { list: self, request }
    }

    /// Makes the requests for parts of `range` urgent, and all their further attempts.
    pub(crate) fn promote(&self, range: ByteRange) {
        for request in self.requests.lock().iter().filter(|request| !request.range.intersection(range).is_empty()) {
            let mut state = request.state.lock();
            state.is_urgent = true;
            if let Some((limit, id)) = &state.attempt {
                limit.promote(*id);
            }
        }
    }
}

impl BackgroundRequest<'_> {
    /// Puts an attempt in the queue of a host.
    pub(crate) fn queue(&self, limit: &Arc<HostLimit>) -> Slot {
        let mut state = self.request.state.lock();
        let place = limit.queue(state.is_urgent);
        state.attempt = Some((Arc::clone(limit), place.id()));
        place
    }
}

impl Drop for BackgroundRequest<'_> {
    fn drop(&mut self) {
        self.list.requests.lock().retain(|request| !Arc::ptr_eq(request, &self.request));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::host_limit::HostLimits;

    /// Whether the next attempt is sent at once. A request in flight leaves a place for demand alone.
    fn is_sent(noted: &BackgroundRequest<'_>, limit: &Arc<HostLimit>) -> bool {
        let place = pin!(limit.acquire(noted.queue(limit), None));
        matches!(place.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_)))
    }

    #[test]
    fn all_attempts_are_urgent_once_a_reader_waits() {
        let limits = HostLimits::new(2);
        let (limit, other_host) = (limits.of("a host"), limits.of("another host"));
        let in_flight = [&limit, &other_host].map(|limit| {
            let place = Box::pin(limit.acquire(limit.queue(true), None));
            match pin!(place).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(slot)) => slot,
                _ => panic!("there is a place"),
            }
        });
        let requests = BackgroundRequests::default();
        let noted = requests.add(ByteRange::new(100, 50));
        assert!(!is_sent(&noted, &limit));
        requests.promote(ByteRange::new(150, 50));
        assert!(!is_sent(&noted, &limit), "the reader waits for other bytes");
        // Between two attempts.
        requests.promote(ByteRange::new(149, 50));
        assert!(is_sent(&noted, &limit) && is_sent(&noted, &limit) && is_sent(&noted, &other_host));
        let later = requests.add(ByteRange::new(100, 50));
        assert!(!is_sent(&later, &limit), "no reader waits for this one");
        // While an attempt waits.
        let place = later.queue(&limit);
        requests.promote(ByteRange::new(0, 1000));
        let sent = pin!(limit.acquire(place, None)).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(sent && is_sent(&later, &limit));
        drop((noted, later, in_flight));
        assert!(requests.requests.lock().is_empty());
    }
}
