//! Counters of prefetch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    memory::prefetch_budget::Unused,
    prefetch::{controller::Controller, detectors::sequential::Ahead},
};

/// Counters of prefetch since the image was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAroundCounters {
    /// Blocks decoded ahead of demand.
    pub ahead_blocks: u64,
    /// Blocks decoded ahead that were used later.
    pub used_blocks: u64,
    /// Blocks decoded ahead that were evicted, or lost their budget to newer ones, before they were used.
    pub wasted_blocks: u64,
    /// Blocks that were not decoded ahead because their pages would have had to be waited for.
    pub given_up: u64,
    /// Blocks that were not decoded ahead because the reader had moved to another place or had already reached them.
    pub cancelled: u64,
    /// Work items dropped because too many were waiting, or because the budget was used up.
    pub dropped: u64,
    /// Bytes pushed into the kernel's page cache ahead of demand.
    pub stored_bytes: u64,
}

/// The live counters behind [`ReadAroundCounters`].
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

/// A window that is being decoded ahead of a reader.
pub(crate) struct AheadGuard<'window> {
    pub(crate) window: &'window Ahead,
    pub(crate) controller: &'window Controller,
}

impl AheadGuard<'_> {
    /// Whether the block that ends at byte `end` of the window is still wanted: the reader has not moved to another
    /// place and has not reached `end`. Counts a block that is not.
    pub(crate) fn wants(&self, end: usize) -> bool {
        let is_wanted = !self.window.is_cancelled() && end as u64 > self.window.passed_bytes();
        if !is_wanted {
            self.controller.counts.cancelled.fetch_add(1, Relaxed);
        }
        is_wanted
    }

    /// Claims bytes of the budget for a block that is decoded now; `None` if the budget is used up.
    pub(crate) fn claim(&self, bytes: u64) -> Option<Arc<Unused>> {
        self.controller.claim_ahead(bytes)
    }

    /// Counts a block that was decoded ahead.
    pub(crate) fn decoded(&self) {
        self.controller.counts.ahead_blocks.fetch_add(1, Relaxed);
    }

    /// Counts blocks that prefetch skips, so that a demand read decodes them; always true.
    pub(crate) fn give_up(&self, count: usize) -> bool {
        self.controller.counts.given_up(count);
        true
    }
}
