//! Detects a thread that sends one small request after the other, alone.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of small requests in turn after which their thread counts as alone.
const LONE_REQUESTS: u32 = 16;

/// Detects a thread that sends one small request after the other while no other thread sends any. Requests that threads note at
/// the same time may be lost.
#[derive(Debug, Default)]
pub(crate) struct LoneCaller {
    last: AtomicU32,
    /// The number of small requests since the last other request.
    in_turn: AtomicU32,
}

impl LoneCaller {
    /// Notes a request of the thread `caller`. Returns whether the previous request came from the same thread. After a request
    /// that `is_small`, the caller sends no other before it has the reply.
    pub(crate) fn note(&self, caller: u32, is_small: bool) -> bool {
        let is_same = self.last.load(Relaxed) == caller;
        if !is_same {
            self.last.store(caller, Relaxed);
        }
        let in_turn = if is_same && is_small { self.in_turn.load(Relaxed).saturating_add(1) } else { 0 };
        self.in_turn.store(in_turn, Relaxed);
        is_same
    }

    /// Whether one thread alone sends small requests, so that none follows while it waits for a reply.
    pub(crate) fn is_waiting(&self) -> bool {
        self.in_turn.load(Relaxed) >= LONE_REQUESTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_alone_after_some_small_requests_in_turn() {
        let lone = LoneCaller::default();
        let note = |count| assert!((0..count).filter(|_| lone.note(7, true)).count() > 0);
        assert_eq!([7, 7, 8, 7].map(|caller| lone.note(caller, true)), [false, true, false, false]);
        for (caller, is_small) in [(8, true), (7, false), (8, false)] {
            note(LONE_REQUESTS + 1);
            assert!(lone.is_waiting());
            lone.note(caller, is_small);
            assert!(!lone.is_waiting(), "{caller} {is_small}");
        }
        note(LONE_REQUESTS / 2);
        assert!(!lone.is_waiting());
    }
}
