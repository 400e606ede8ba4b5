//! Decides what is prefetched, and how much may wait.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_image::{ByteRange, Nid};

use crate::{
    PrefetchKind, ReadAroundCounters,
    cache::block_cache::Key,
    metrics::gauge::{Counted, Gauge},
    prefetch::{
        counters::Counts,
        detectors::{
            clustered::HotRegions,
            directory::{AheadFile, ListedFile, Walks},
            sequential::{Ahead, Streams},
        },
        held_blocks::{Held, HeldBlocks},
        sink::PageCache,
    },
};

/// The most pieces of work that wait at one time; more are dropped.
const WAITING_MAX: usize = 64;

/// Of a block that takes at least so long to decode, the rest is given to the page cache soon: copying takes a fraction of
/// that.
pub(crate) const STORED_SOON_DECODE: Duration = Duration::from_micros(25);

/// Of a block that takes at least so long to decode, it is even while reads are scattered.
pub(crate) const STORED_ALWAYS_DECODE: Duration = Duration::from_micros(100);

/// So many bytes are decoded ahead of a reader before it is looked where the reader is, and whether memory is short.
pub(crate) const AHEAD_STEP_BYTES: usize = 256 << 10;

/// Blocks that wait to be given to the page cache take at most this part of the cache of decoded blocks.
const HELD_PART: u64 = 4;

/// The prefetch of one reader: sequential and directory readahead, clustered reads, and the rest of decoded blocks.
///
/// The thread `floe-around` does the work at normal priority, with best-effort pages; work may be dropped. Costly blocks go to
/// the page cache through `floe-store`, which decoders cannot starve, if more than one waits.
#[derive(Default)]
pub(crate) struct Prefetch {
    page_cache: OnceLock<Box<dyn PageCache>>,
    streams: Mutex<Streams>,
    hot_regions: HotRegions,
    walks: Walks,
    waiting: AtomicUsize,
    held: Arc<HeldBlocks>,
    /// Pieces of work that read more than was asked for, waiting or under way.
    reading_on: Gauge,
    pub(crate) counts: Counts,
}

/// What a read makes worth prefetching.
#[derive(Default)]
pub(crate) struct Beside {
    /// The next files of a directory walk.
    pub(crate) files: Vec<AheadFile>,
    /// The region of the file with clustered reads.
    pub(crate) region: Option<ByteRange>,
}

impl Prefetch {
    pub(crate) fn set_page_cache(&self, page_cache: Box<dyn PageCache>) {
        // A second one would be told of the same bytes: the first stays.
        let _ = self.page_cache.set(page_cache);
    }

    pub(crate) fn page_cache(&self) -> Option<&dyn PageCache> {
        self.page_cache.get().map(Box::as_ref)
    }

    pub(crate) fn counters(&self, used_blocks: u64, wasted_blocks: u64) -> ReadAroundCounters {
        self.counts.so_far(used_blocks, wasted_blocks)
    }

    /// Records a read that begins; returns the window to decode ahead of a sequential reader.
    pub(crate) fn note_read(&self, nid: Nid, range: ByteRange) -> Option<Ahead> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).note(nid, range)
    }

    /// Returns what a read that is not sequential makes worth prefetching.
    pub(crate) fn beside(&self, nid: Nid, range: ByteRange, has: impl Fn(PrefetchKind) -> bool) -> Beside {
        if self.page_cache.get().is_none() {
            return Beside::default();
        }
        let files = match range.offset() {
            0 if has(PrefetchKind::Directory) => self.walks.note_read(nid),
            _ => Vec::new(),
        };
        let region = has(PrefetchKind::Clustered).then(|| self.hot_regions.note(nid, range)).flatten();
        Beside { files, region }
    }

    /// Notes files of a directory that readers were told of.
    pub(crate) fn note_listed(&self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        self.walks.note_listed(directory, is_beginning, files);
    }

    /// Whether nobody has come to a file that is to be read ahead.
    pub(crate) fn is_wanted(&self, ahead: &AheadFile) -> bool {
        self.walks.is_wanted(ahead)
    }

    /// Room for one more piece of work that waits; counted as dropped where there is none.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Admitted> {
        if self.waiting.fetch_add(1, Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Relaxed);
            self.counts.dropped();
            return None;
        }
        Some(Admitted(Arc::clone(self)))
    }

    /// Counts a piece of work that reads more than was asked for.
    pub(crate) fn reads_on(&self) -> Counted {
        self.reading_on.enter()
    }

    /// Whether there is such a piece of work.
    pub(crate) fn is_reading_on(&self) -> bool {
        self.reading_on.now() > 0
    }

    /// Holds a block of `len` bytes until the page cache was given the rest of it; counted as dropped where too much of a
    /// cache of `cache_bytes` is held already.
    pub(crate) fn hold(&self, key: Key, len: u64, cache_bytes: u64) -> Option<Held> {
        let held = self.held.hold(key, len, cache_bytes / HELD_PART);
        if held.is_none() {
            self.counts.dropped();
        }
        held
    }
}

/// A piece of work that waits; no longer once this is dropped.
pub(crate) struct Admitted(Arc<Prefetch>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
