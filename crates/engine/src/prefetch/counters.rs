//! Counters of prefetch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    memory::prefetch_budget::Unused,
    prefetch::{controller::Controller, detectors::sequential::Ahead},
};

/// What read-around has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAroundCounters {
    /// Blocks decoded before anybody asked for them.
    pub ahead_blocks: u64,
    /// Of them, those that somebody asked for later.
    pub used_blocks: u64,
    /// Of them, those that nobody asked for before they left the cache, or before newer ones needed their budget.
    pub wasted_blocks: u64,
    /// Blocks left to a later demand read, because their pages would have cost waiting.
    pub given_up: u64,
    /// Blocks left because the reader had gone elsewhere, or had come there first.
    pub cancelled: u64,
    /// Pieces of work dropped because too many were waiting.
    pub dropped: u64,
    /// Bytes given to the kernel's page cache that nobody had asked for.
    pub stored_bytes: u64,
}

/// The counters of [`ReadAroundCounters`], as they are counted.
#[derive(Default)]
pub(crate) struct Counts {
    ahead_blocks: AtomicU64,
    given_up: AtomicU64,
    cancelled: AtomicU64,
    dropped: AtomicU64,
    stored_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn given_up(&self, count: usize) {
        self.given_up.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    pub(crate) fn stored(&self, byte_count: usize) {
        self.stored_bytes.fetch_add(byte_count as u64, Relaxed);
    }

    pub(crate) fn so_far(&self, used_blocks: u64, wasted_blocks: u64) -> ReadAroundCounters {
        ReadAroundCounters {
            ahead_blocks: self.ahead_blocks.load(Relaxed),
            used_blocks,
            wasted_blocks,
            given_up: self.given_up.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
        }
    }
}

/// A window that is decoded ahead of a reader, for as long as it is worth it.
pub(crate) struct AheadGuard<'window> {
    pub(crate) window: &'window Ahead,
    pub(crate) controller: &'window Controller,
}

impl AheadGuard<'_> {
    /// Whether the reader is still on its way, and has not come to `end`, a byte of the window; counts a block that it
    /// does not want any more.
    pub(crate) fn wants(&self, end: usize) -> bool {
        let is_wanted = !self.window.is_cancelled() && end as u64 > self.window.passed_bytes();
        if !is_wanted {
            self.controller.counts.cancelled.fetch_add(1, Relaxed);
        }
        is_wanted
    }

    /// Claims the bytes of a block that is decoded now; `None` where there is no room for them.
    pub(crate) fn claim(&self, bytes: u64) -> Option<Arc<Unused>> {
        self.controller.claim_ahead(bytes)
    }

    /// Counts a block that was decoded.
    pub(crate) fn decoded(&self) {
        self.controller.counts.ahead_blocks.fetch_add(1, Relaxed);
    }

    /// Counts blocks that are left to a later demand read; always true.
    pub(crate) fn give_up(&self, count: usize) -> bool {
        self.controller.counts.given_up(count);
        true
    }
}
