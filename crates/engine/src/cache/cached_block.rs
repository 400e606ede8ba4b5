//! A decoded block of the block cache.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use floe_image::DecodedLen;

use crate::{PageRun, memory::prefetch_budget::Unused, sync::Mutex};

/// The number of further requests for a part of a file after which it is pushed into the kernel's page cache again. So
/// many requests show that the kernel has dropped it.
const PUSHED_AGAIN_REQUESTS: u64 = 8;

/// The bits of [`CachedBlock::pushed`] that count requests.
const PUSHES_MASK: u64 = 0xf;

/// A decoded block.
#[derive(Debug)]
pub(crate) struct CachedBlock {
    pages: PageRun,
    len: usize,
    /// Whether these bytes are the whole block, not just a prefix of it.
    is_complete: bool,
    was_used: AtomicBool,
    /// Set if the block was prefetched.
    ahead: OnceLock<Arc<Unused>>,
    /// Alive while the block waits to be pushed into the kernel's page cache.
    held: Mutex<Weak<Unused>>,
    /// A hash of the part of a file that was pushed into the kernel's page cache last, and the number of requests for it since.
    pushed: AtomicU64,
}

impl CachedBlock {
    pub(crate) fn new(pages: PageRun, len: usize, is_complete: bool) -> Self {
        let (was_used, ahead, held) = (AtomicBool::new(false), OnceLock::new(), Mutex::default());
        Self { pages, len, is_complete, was_used, ahead, held, pushed: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pages[..self.len]
    }

    /// The bytes that the block takes in the cache.
    pub(super) fn size(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Marks the block as prefetched. It survives one more round of the hand, because its use is still to come.
    pub(crate) fn mark_ahead(&self, unused: Arc<Unused>) {
        let _ = self.ahead.set(unused);
        self.was_used.store(true, Relaxed);
    }

    /// Holds the block with a claim on the prefetch budget, which counts once for all concurrent holders. Returns the
    /// existing claim, or the one that `claim` makes.
    pub(crate) fn hold(&self, claim: impl FnOnce() -> Option<Arc<Unused>>) -> Option<Arc<Unused>> {
        let mut held = self.held.lock();
        if let Some(unused) = held.upgrade() {
            return Some(unused);
        }
        claim().inspect(|unused| *held = Arc::downgrade(unused))
    }

    /// Notes a request to push a part of a file, which is in this block, into the kernel's page cache. Returns whether
    /// to push it now: `false` if it is the part that was pushed last, unless requests for it continue.
    pub(crate) fn note_push(&self, part_hash: u64) -> bool {
        let seen = self.pushed.load(Relaxed);
        let is_same = seen & !PUSHES_MASK == part_hash & !PUSHES_MASK && seen & PUSHES_MASK != 0;
        let count = if is_same { (seen & PUSHES_MASK) % PUSHED_AGAIN_REQUESTS + 1 } else { 1 };
        self.pushed.store(part_hash & !PUSHES_MASK | count, Relaxed);
        count == 1
    }

    /// Notes that the push of the part of a file failed.
    pub(crate) fn forget_push(&self) {
        self.pushed.store(0, Relaxed);
    }

    /// Notes that a lookup found the block.
    pub(super) fn note_hit(&self) {
        self.was_used.store(true, Relaxed);
        if let Some(unused) = self.ahead.get() {
            unused.note_used();
        }
    }

    /// Whether the block was used since the last call.
    pub(super) fn take_used_mark(&self) -> bool {
        self.was_used.swap(false, Relaxed)
    }

    /// Whether its pages may stay in the cache. They may not if the cache was resized since they were taken.
    pub(super) fn may_stay(&self) -> bool {
        self.pages.may_stay()
    }

    /// Makes the block an early candidate for eviction, because its reader has consumed all of it.
    pub(crate) fn mark_consumed(&self) {
        self.was_used.store(false, Relaxed);
    }

    /// Whether these bytes are the whole block, not just a prefix of it.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether these bytes satisfy a request for `decoded_len`.
    pub(crate) fn serves(&self, decoded_len: DecodedLen) -> bool {
        serves(self.len, self.is_complete, decoded_len)
    }
}

/// Whether `len` bytes satisfy a request for `wanted`; `is_complete` says that they are the whole block.
pub(crate) fn serves(len: usize, is_complete: bool, wanted: DecodedLen) -> bool {
    match wanted {
        DecodedLen::Exact(wanted) => len == wanted as usize,
        DecodedLen::AtLeast(wanted) => len >= wanted as usize,
        DecodedLen::AtMost(wanted) => is_complete && len <= wanted as usize,
    }
}
