//! A window that is being decoded ahead of its reader.

use std::sync::Arc;

use crate::{
    memory::prefetch_budget::Unused,
    prefetch::{controller::Controller, detectors::sequential::Ahead},
};

/// A window that is being decoded ahead of its reader.
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
            self.controller.counts.cancelled();
        }
        is_wanted
    }

    /// Claims bytes of the budget for a block that is decoded now; `None` if the budget is used up.
    pub(crate) fn claim(&self, bytes: u64) -> Option<Arc<Unused>> {
        self.controller.claim_ahead(bytes)
    }

    /// Counts a block that was decoded ahead.
    pub(crate) fn decoded(&self) {
        self.controller.counts.decoded_ahead();
    }

    /// Counts blocks that prefetch skips, so that a demand read decodes them; always true.
    pub(crate) fn give_up(&self, count: usize) -> bool {
        self.controller.counts.given_up(count);
        true
    }
}
