//! Counters of prefetch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_image::metrics;

metrics! {
    /// Counters of prefetch since the image was opened.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ReadAroundCounters {
        /// Blocks decoded ahead of demand.
        pub ahead_blocks: u64 = Counter,
        /// Blocks decoded ahead that were used later.
        pub used_blocks: u64 = Counter,
        /// Blocks decoded ahead that were evicted, or lost their budget to newer ones, before they were used.
        pub wasted_blocks: u64 = Counter,
        /// Blocks that were not decoded ahead because their pages would have had to be waited for.
        pub given_up: u64 = Counter as given_up_blocks,
        /// Blocks that were not decoded ahead because the reader had moved to another place or had already reached them.
        pub cancelled: u64 = Counter as cancelled_blocks,
        /// Work items dropped because too many were waiting, or because the budget was used up.
        pub dropped: u64 = Counter,
        /// Bytes pushed into the kernel's page cache ahead of demand.
        pub stored_bytes: u64 = Counter,
    }
}

/// The live counters behind [`ReadAroundCounters`].
#[derive(Default)]
pub(crate) struct Counts {
    ahead_blocks: AtomicU64,
    given_up: AtomicU64,
    cancelled: AtomicU64,
    dropped: AtomicU64,
    pushed_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn decoded_ahead(&self) {
        self.ahead_blocks.fetch_add(1, Relaxed);
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    pub(crate) fn given_up(&self, count: usize) {
        self.given_up.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    pub(crate) fn pushed(&self, byte_count: usize) {
        self.pushed_bytes.fetch_add(byte_count as u64, Relaxed);
    }

    pub(crate) fn so_far(&self, used_blocks: u64, wasted_blocks: u64) -> ReadAroundCounters {
        ReadAroundCounters {
            ahead_blocks: self.ahead_blocks.load(Relaxed),
            used_blocks,
            wasted_blocks,
            given_up: self.given_up.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            stored_bytes: self.pushed_bytes.load(Relaxed),
        }
    }
}
