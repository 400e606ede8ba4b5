//! The bytes near a read that prefetch pushes into the page cache.

use std::sync::Arc;

use floe_image::{ByteRange, Extent, ExtentData, Nid, Result, StoredBlock};

use super::{ReadAround, run_around};
use crate::{
    Blocking, PrefetchKind, Sink,
    cache::{cached_block::CachedBlock, fragment_cache::FragmentCache},
    prefetch::{controller::PushRest, thresholds::*},
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
    when: PushRest,
}

impl Neighbours {
    /// The parts of the file to push into the page cache beyond a read: the rest of the blocks that a small read decodes or
    /// finds in memory, and the cluster around it. Of larger reads, the rest of costly blocks that they decode, if the read is
    /// prefetch or the block is a fragment.
    /// Where the kernel reads files whole, only the rest of fragments that are costly to decode again.
    pub(super) fn of(read: ReadAround, data: &FileData, extents: &[Extent], steps: &[Step]) -> Self {
        let ReadAround { nid, range, is_prefetch } = read;
        let (engine, prefetch) = (&data.volume.engine, &data.volume.prefetch);
        let Some(sink) = prefetch.sink().filter(|_| prefetch.has(PrefetchKind::RestOfBlock)) else {
            return Self::default();
        };
        // The kernel's readahead did not include a small read. Without this, each further page of its block would be a
        // separate request.
        let is_small = range.len() <= SMALL_READ_BYTES_MAX;
        // Programs that read a little of each of many files never read the rest of these blocks.
        let is_only = is_small && prefetch.is_only_read(nid);
        // The kernel's readahead reads these files whole, so a push of the rest of a cheap block costs more than the requests that
        // it saves.
        let is_whole = sink.reads_whole_files(nid);
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
                let follows_large = (is_fragment || is_prefetch) && cost >= PUSHED_ALWAYS_DECODE;
                let is_kept = is_fragment && engine.fragments.is_kept(cost);
                let is_wanted = has_more && (is_small || follows_large) && (is_kept || !is_only && !is_whole);
                let has_rest = !is_clustered || extent.range.len() >= RESTED_BYTES_MIN;
                let is_wanted = is_wanted && has_rest && !cluster.is_some_and(|cluster| cluster.contains(extent.range));
                let was_cached = was_cached(&block).filter(|_| is_wanted)?;
                let when = prefetch.push_rest(cost, is_fragment || was_cached)?;
                Some(Neighbour { block, range: extent.range, skip, is_fragment, is_kept, when })
            }
            _ => None,
        });
        Self { blocks: blocks.collect(), cluster }
    }

    /// Pushes the bytes into the page cache, after the reply of the read.
    ///
    /// The rest of cheap blocks may be pushed later or be dropped. The rest of costly blocks is pushed soon, and the blocks are
    /// held until then: an evicted block would be decoded again for each of its pages.
    pub(super) fn push(self, read: ReadAround, data: &Arc<FileData>) {
        let (nid, prefetch) = (read.nid, &data.volume.prefetch);
        if let Some(sink) = prefetch.sink().filter(|sink| sink.reads_by_itself(nid)) {
            return self.request(nid, data, sink);
        }
        let held = self.cluster.and_then(|cluster| Some((cluster, prefetch.hold(cluster.len())?)));
        if let Some((cluster, held)) = held {
            // Otherwise the one thread that pushes clusters would wait for the source, one cluster after the other.
            data.will_need(nid, cluster);
            let is_accepted = push_after_reply(data, move |data| {
                // Errors are ignored: a read of the same range receives them.
                drop((push_cluster(data, read, cluster), held));
            });
            if is_accepted {
                prefetch.note_cluster(nid, cluster);
            }
        }
        for neighbour in self.blocks {
            if read.range.contains(neighbour.range) && !neighbour.is_kept {
                continue;
            }
            let Some(cached) = data.volume.blocks.peek(&neighbour.block) else { continue };
            if !cached.note_push(neighbour.hash(data, nid)) {
                continue;
            }
            let is_accepted = match neighbour.when {
                PushRest::Soon => neighbour.push_soon(read, data, &cached),
                PushRest::Later => run_around(data, move |data| {
                    if let Some(cached) = data.volume.blocks.peek(&neighbour.block) {
                        neighbour.push(read, data, &cached);
                    }
                }),
            };
            if !is_accepted {
                cached.forget_push();
            }
        }
    }

    /// Asks the page cache to read the bytes itself.
    fn request(&self, nid: Nid, data: &FileData, sink: &dyn Sink) {
        let volume = &data.volume;
        let cpus_are_short = volume.engine.workers.cpus_are_short();
        if let Some(cluster) = self.cluster {
            data.will_need(nid, cluster);
            sink.request(nid, cluster, cpus_are_short);
            volume.prefetch.note_cluster(nid, cluster);
        }
        for neighbour in &self.blocks {
            let cached = volume.blocks.peek(&neighbour.block);
            if cached.is_some_and(|cached| cached.note_push(neighbour.hash(data, nid))) {
                sink.request(nid, neighbour.range, cpus_are_short);
            }
        }
    }
}

impl Neighbour {
    /// A hash of the part of the file `nid` of this volume. Other volumes of the same content have other page caches.
    fn hash(&self, data: &FileData, nid: Nid) -> u64 {
        let volume = data.volume.numbers.volume();
        (nid.0.rotate_left(32) ^ self.range.offset() ^ volume.rotate_right(16)).wrapping_mul(HASH_FACTOR)
    }

    /// Schedules a push of the rest of the block. Returns whether there is room to hold the block until then, and a thread.
    fn push_soon(self, read: ReadAround, data: &Arc<FileData>, cached: &Arc<CachedBlock>) -> bool {
        let len = cached.bytes().len() as u64;
        let Some(held) = cached.hold(|| data.volume.prefetch.hold(len)) else { return false };
        let cached = Arc::clone(cached);
        push_after_reply(data, move |data| {
            self.push(read, data, &cached);
            if self.is_kept {
                data.volume.engine.fragments.keep(data.volume.blocks.key(&self.block), &cached);
            }
            drop((cached, held));
        })
    }

    /// Pushes what the read did not contain into the page cache.
    fn push(self, read: ReadAround, data: &FileData, cached: &CachedBlock) {
        let Self { range, skip, .. } = self;
        let prefetch = &data.volume.prefetch;
        let Some(sink) = prefetch.sink() else { return };
        let before = ByteRange::between(range.offset(), range.end().min(read.range.offset()));
        let after = ByteRange::between(range.offset().max(read.range.end()), range.end());
        let mut is_pushed = true;
        for part in [before, after] {
            let page = sink.page_bytes();
            let part = ByteRange::between(part.offset().next_multiple_of(page), part.end() - part.end() % page);
            let start = skip as usize + (part.offset().saturating_sub(range.offset())) as usize;
            let bytes = cached.bytes().get(start..start.saturating_add(part.len() as usize)).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            let pushed_len = sink.push(read.nid, part.offset(), bytes);
            prefetch.counts.pushed(pushed_len);
            // The block is needed again for bytes that were not pushed.
            is_pushed &= pushed_len == bytes.len();
        }
        if is_pushed {
            FragmentCache::note_pushed(cached, self.is_fragment);
        }
    }
}

/// Whether an extent may be part of a cluster: such bytes are read quickly, and are plain or in blocks much smaller than a
/// cluster.
fn may_cluster(data: &FileData, extent: &Extent) -> bool {
    match extent.data {
        ExtentData::Hole => false,
        // The bytes of derived sources are computed, and their format reads ahead by itself.
        ExtentData::Plain { device, .. } => !data.volume.numbers.is_derived(device),
        ExtentData::Encoded { block, .. } => {
            let len = u64::from(block.decoded_len.bytes());
            let cost = data.volume.engine.costs.estimate(&block);
            (1..=CLUSTER_BLOCK_BYTES_MAX).contains(&len) && cost * (CLUSTER_BYTES / len) as u32 <= CLUSTER_DECODE_MAX
        }
    }
}

/// Pushes the bytes of a cluster that are contiguous with those of a read into the page cache, as far as their extents may be
/// part of a cluster.
fn push_cluster(data: &FileData, read: ReadAround, cluster: ByteRange) -> Result<()> {
    let page_bytes = data.volume.prefetch.sink().map_or(1, |sink| sink.page_bytes());
    let part = data.workspaces.with(|workspace| {
        data.plan(workspace, read.nid, cluster, Blocking::Allowed)?;
        let (mut start, mut end) = (cluster.offset(), cluster.offset());
        for extent in &workspace.extents {
            if may_cluster(data, extent) {
                end = extent.range.end();
            } else if extent.range.end() <= read.range.offset() {
                (start, end) = (extent.range.end(), extent.range.end());
            } else {
                // Within a file, pushed bytes end at a page boundary.
                end -= end % page_bytes;
                break;
            }
        }
        let part = ByteRange::between(start.next_multiple_of(page_bytes), end.max(start));
        Ok(part.intersection(cluster))
    })?;
    if part.is_empty() { Ok(()) } else { data.push_part(read.nid, part).map(drop) }
}

/// Runs `work`, which pushes bytes into the page cache that a reader is likely to want soon. Returns whether it will run.
///
/// The real-time thread `floe-store` would take the CPU from the reader that just got its reply. So it gets work only
/// while earlier work still waits.
fn push_after_reply(data: &Arc<FileData>, work: impl FnOnce(&FileData) + Send + 'static) -> bool {
    let volume = Arc::clone(&data.volume);
    let (pushing, is_alone) = volume.prefetch.count_push();
    let data = Arc::clone(data);
    let work = Box::new(move || {
        work(&data);
        drop(pushing);
    });
    if is_alone { volume.run_around(work) } else { volume.run_store(work) }
}
