//! Counters of the cache and its objects.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{AheadCounts, AheadReason, Cause};

/// Counters of an open object and of its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounts {
    /// Reads of cached chunks.
    pub hits: u64,
    /// Reads of chunks that had to be fetched.
    pub misses: u64,
    /// Reads that waited for a fetch by another thread or process.
    pub joined: u64,
    /// Requests, by cause.
    pub requests: ByCause,
    /// Bytes fetched, by cause.
    pub bytes: ByCause,
    /// Bytes fetched ahead of readers, in the order of [`AheadReason::ALL`].
    pub ahead: [AheadCounts; AheadReason::ALL.len()],
    /// Chunks that this process evicted from the cache, of any object.
    pub evicted_chunks: u64,
    /// Fetched chunks that failed verification.
    pub verification_failures: u64,
    /// Cached chunks that had changed since they were stored, and were fetched again.
    pub corrupt_chunks: u64,
    /// Chunks that were served without being stored.
    pub uncached_chunks: u64,
    /// Bytes hashed with SHA-256.
    pub hashed_bytes: u64,
    /// The CPU time for that, in nanoseconds.
    pub hashed_ns: u64,
}

/// A number for each cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByCause {
    /// For requests that wait.
    pub demand: u64,
    /// Ahead of demand.
    pub prefetch: u64,
    /// For metadata.
    pub metadata: u64,
    /// For hash trees.
    pub tree: u64,
}

impl ByCause {
    /// The sum over all causes.
    pub const fn total(self) -> u64 {
        self.demand + self.prefetch + self.metadata + self.tree
    }
}

/// Counters of one open object.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) joined: Counter,
    requests: [Counter; 4],
    bytes: [Counter; 4],
    pub(crate) verification_failures: Counter,
    pub(crate) corrupt_chunks: Counter,
    pub(crate) uncached_chunks: Counter,
    pub(crate) hashed_bytes: Counter,
    pub(crate) hashed_ns: Counter,
}

impl Counters {
    /// Counts a fetch that returned `bytes`.
    pub(crate) fn fetched(&self, cause: Cause, bytes: u64) {
        self.requests[cause.index()].add(1);
        self.bytes[cause.index()].add(bytes);
    }

    /// The counters so far, with those that are counted elsewhere.
    pub(crate) fn counts(&self, evicted_chunks: u64, ahead: [AheadCounts; AheadReason::ALL.len()]) -> CacheCounts {
        CacheCounts {
            hits: self.hits.total(),
            misses: self.misses.total(),
            joined: self.joined.total(),
            requests: by_cause(&self.requests),
            bytes: by_cause(&self.bytes),
            ahead,
            evicted_chunks,
            verification_failures: self.verification_failures.total(),
            corrupt_chunks: self.corrupt_chunks.total(),
            uncached_chunks: self.uncached_chunks.total(),
            hashed_bytes: self.hashed_bytes.total(),
            hashed_ns: self.hashed_ns.total(),
        }
    }
}

fn by_cause(counters: &[Counter; 4]) -> ByCause {
    let [demand, prefetch, metadata, tree] = Cause::ALL.map(|cause| counters[cause.index()].total());
    ByCause { demand, prefetch, metadata, tree }
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
