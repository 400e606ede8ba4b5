//! The bytes near a read that prefetch pushes into the page cache.

use std::sync::Arc;

use floe_image::{ByteRange, Extent, ExtentData, Nid, Result, StoredBlock};

use super::{ReadAround, run_around};
use crate::{
    Blocking, PrefetchKind, Sink,
    cache::{block_cache::CachedBlock, fragment_cache::FragmentCache},
    prefetch::{controller::StoreRest, thresholds::*},
    read::{
        acquire::{BlockSource, Step},
        file_data::FileData,
    },
};

/// An odd multiplier with well-mixed bits.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bytes near a read that prefetch pushes into the page cache.
#[derive(Default, Debug)]
pub(crate) struct Neighbours {
    /// The rest of the blocks that the read decoded or found in memory.
    blocks: Vec<Neighbour>,
    /// The cluster around the read.
    cluster: Option<ByteRange>,
}

/// The part of a file in a block that a read used only in part.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    block: StoredBlock,
    /// The bytes of the file in the block.
    range: ByteRange,
    /// The number of decoded bytes before the first of them.
    skip: u32,
    is_fragment: bool,
    /// Whether the block is a fragment to keep beyond its eviction.
    is_kept: bool,
    when: StoreRest,
}

impl Neighbours {
    /// The parts of the file to push into the page cache beyond a read: the rest of the blocks that a small read decodes or
    /// finds in memory, and the cluster around it. Of larger reads, the rest of costly blocks that they decode, if the read is
    /// prefetch or the block is a fragment.
    pub(super) fn of(read: ReadAround, data: &FileData, extents: &[Extent], steps: &[Step]) -> Self {
        let ReadAround { nid, range, is_prefetch } = read;
        let (engine, prefetch) = (&data.engine, &data.engine.prefetch);
        if prefetch.page_cache().is_none() || !prefetch.has(PrefetchKind::RestOfBlock) {
            return Self::default();
        }
        // The kernel's readahead did not include a small read. Without this, each further page of its block would be a
        // separate request.
        let is_small = range.len() <= SMALL_READ_BYTES_MAX;
        let was_cached = |block: &StoredBlock| {
            steps.iter().find_map(|step| match &step.source {
                BlockSource::Lead { block: other, .. } if other == block => Some(false),
                BlockSource::Cached { block: other, .. } if is_small && other == block => Some(true),
                _ => None,
            })
        };
        let is_clustered = is_small && extents.iter().all(|extent| may_cluster(data, extent));
        let cluster = if is_clustered { prefetch.cluster(nid, range) } else { None };
        let ends = extents.first().into_iter().chain(extents.last().filter(|_| extents.len() > 1));
        let blocks = ends.filter_map(|extent| match extent.data {
            ExtentData::Encoded { block, skip } => {
                let cost = engine.costs.estimate(&block);
                let is_fragment = FragmentCache::is_fragment(extent.range, &block);
                let has_more = is_fragment || !range.contains(extent.range);
                // A large read of a program comes from the kernel's readahead, which continues anyway: the rest of the
                // block would split its windows. No readahead continues a large read of prefetch.
                let follows_large = (is_fragment || is_prefetch) && cost >= STORED_ALWAYS_DECODE;
                let is_wanted = has_more && (is_small || follows_large);
                let has_rest = !is_clustered || extent.range.len() >= RESTED_BYTES_MIN;
                let is_wanted = is_wanted && has_rest && !cluster.is_some_and(|cluster| cluster.contains(extent.range));
                let was_cached = was_cached(&block).filter(|_| is_wanted)?;
                let when = prefetch.store_rest(cost, is_fragment || was_cached)?;
                let is_kept = is_fragment && engine.fragments.is_kept(cost);
                Some(Neighbour { block, range: extent.range, skip, is_fragment, is_kept, when })
            }
            _ => None,
        });
        Self { blocks: blocks.collect(), cluster }
    }

    /// Pushes the bytes into the page cache, after the reply of the read.
    ///
    /// The rest of cheap blocks may be stored later or be dropped. The rest of costly blocks is stored soon, and the blocks are
    /// held until then: an evicted block would be decoded again for each of its pages.
    pub(super) fn store(self, read: ReadAround, data: &Arc<FileData>) {
        let (nid, prefetch) = (read.nid, &data.engine.prefetch);
        if let Some(page_cache) = prefetch.page_cache().filter(|page_cache| page_cache.reads_by_itself(nid)) {
            return self.request(nid, data, page_cache);
        }
        let held = self.cluster.and_then(|cluster| Some((cluster, prefetch.hold(cluster.len())?)));
        if let Some((cluster, held)) = held {
            // Otherwise the one thread that stores clusters would wait for the source, one cluster after the other.
            data.will_need(nid, cluster);
            let is_accepted = store_after_reply(data, move |data| {
                // Errors are ignored: a read of the same range receives them.
                drop((store_cluster(data, read, cluster), held));
            });
            if is_accepted {
                prefetch.note_cluster(nid, cluster);
            }
        }
        for neighbour in self.blocks {
            if read.range.contains(neighbour.range) && !neighbour.is_kept {
                continue;
            }
            let Some(cached) = data.engine.blocks.peek(&neighbour.block) else { continue };
            if !cached.note_store(neighbour.hash(nid)) {
                continue;
            }
            let is_accepted = match neighbour.when {
                StoreRest::Soon => neighbour.store_soon(read, data, &cached),
                StoreRest::Later => run_around(data, move |data| {
                    if let Some(cached) = data.engine.blocks.peek(&neighbour.block) {
                        neighbour.store(read, data, &cached);
                    }
                }),
            };
            if !is_accepted {
                cached.forget_store();
            }
        }
    }

    /// Asks the page cache to read the bytes itself.
    fn request(&self, nid: Nid, data: &FileData, page_cache: &dyn Sink) {
        let engine = &data.engine;
        let cpus_are_short = engine.workers.cpus_are_short();
        if let Some(cluster) = self.cluster {
            data.will_need(nid, cluster);
            page_cache.request(nid, cluster, cpus_are_short);
            engine.prefetch.note_cluster(nid, cluster);
        }
        for neighbour in &self.blocks {
            let cached = engine.blocks.peek(&neighbour.block);
            if cached.is_some_and(|cached| cached.note_store(neighbour.hash(nid))) {
                page_cache.request(nid, neighbour.range, cpus_are_short);
            }
        }
    }
}

impl Neighbour {
    /// A hash of the part of the file `nid`.
    fn hash(&self, nid: Nid) -> u64 {
        (nid.0.rotate_left(32) ^ self.range.offset()).wrapping_mul(HASH_FACTOR)
    }

    /// Schedules the storing of the rest of the block. Returns whether there is room to hold the block until then, and a thread.
    fn store_soon(self, read: ReadAround, data: &Arc<FileData>, cached: &Arc<CachedBlock>) -> bool {
        let len = cached.bytes().len() as u64;
        let Some(held) = cached.hold(|| data.engine.prefetch.hold(len)) else { return false };
        let cached = Arc::clone(cached);
        store_after_reply(data, move |data| {
            self.store(read, data, &cached);
            if self.is_kept {
                data.engine.fragments.keep(&self.block, &cached);
            }
            drop((cached, held));
        })
    }

    /// Stores what the read did not contain in the page cache.
    fn store(self, read: ReadAround, data: &FileData, cached: &CachedBlock) {
        let Self { range, skip, .. } = self;
        let prefetch = &data.engine.prefetch;
        let Some(page_cache) = prefetch.page_cache() else { return };
        let before = ByteRange::between(range.offset(), range.end().min(read.range.offset()));
        let after = ByteRange::between(range.offset().max(read.range.end()), range.end());
        let mut is_stored = true;
        for part in [before, after] {
            let page = page_cache.page_bytes();
            let part = ByteRange::between(part.offset().next_multiple_of(page), part.end() - part.end() % page);
            let start = skip as usize + (part.offset().saturating_sub(range.offset())) as usize;
            let bytes = cached.bytes().get(start..start.saturating_add(part.len() as usize)).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            let stored_len = page_cache.store(read.nid, part.offset(), bytes);
            prefetch.counts.stored(stored_len);
            // The block is needed again for bytes that were not stored.
            is_stored &= stored_len == bytes.len();
        }
        if is_stored {
            FragmentCache::note_stored(cached, self.is_fragment);
        }
    }
}

/// Whether an extent may be part of a cluster: such bytes are read quickly, and are plain or in blocks much smaller than a
/// cluster.
fn may_cluster(data: &FileData, extent: &Extent) -> bool {
    match extent.data {
        ExtentData::Hole => false,
        // The bytes of derived sources are computed, and their format reads ahead by itself.
        ExtentData::Plain { device, .. } => !data.engine.sources.is_derived(device),
        ExtentData::Encoded { block, .. } => {
            let len = u64::from(block.decoded_len.bytes());
            let cost = data.engine.costs.estimate(&block);
            (1..=CLUSTER_BLOCK_BYTES_MAX).contains(&len) && cost * (CLUSTER_BYTES / len) as u32 <= CLUSTER_DECODE_MAX
        }
    }
}

/// Stores the bytes of a cluster that are contiguous with those of a read in the page cache, as far as their extents may be
/// part of a cluster.
fn store_cluster(data: &FileData, read: ReadAround, cluster: ByteRange) -> Result<()> {
    let page_bytes = data.engine.prefetch.page_cache().map_or(1, |page_cache| page_cache.page_bytes());
    let part = data.workspaces.with(|workspace| {
        data.plan(workspace, read.nid, cluster, Blocking::Allowed)?;
        let (mut start, mut end) = (cluster.offset(), cluster.offset());
        for extent in &workspace.extents {
            if may_cluster(data, extent) {
                end = extent.range.end();
            } else if extent.range.end() <= read.range.offset() {
                (start, end) = (extent.range.end(), extent.range.end());
            } else {
                // Within a file, stored bytes end at a page boundary.
                end -= end % page_bytes;
                break;
            }
        }
        let part = ByteRange::between(start.next_multiple_of(page_bytes), end.max(start));
        Ok(part.intersection(cluster))
    })?;
    if part.is_empty() { Ok(()) } else { data.store_part(read.nid, part).map(drop) }
}

/// Runs `work`, which stores bytes in the page cache that a reader is likely to want soon. Returns whether it will run.
///
/// The real-time thread `floe-store` would take the CPU from the reader that just got its reply. So it gets work only
/// while earlier work still waits.
fn store_after_reply(data: &Arc<FileData>, work: impl FnOnce(&FileData) + Send + 'static) -> bool {
    let engine = &data.engine;
    let (storing, is_alone) = engine.prefetch.stores();
    let data = Arc::clone(data);
    let work = Box::new(move || {
        work(&data);
        drop(storing);
    });
    if is_alone { engine.workers.run_around(work) } else { engine.workers.store(work) }
}
