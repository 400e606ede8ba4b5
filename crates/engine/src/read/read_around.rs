//! Executes the decisions of prefetch: decodes ahead, and pushes bytes into the page cache.

use std::sync::Arc;

use floe_image::{ByteRange, DeviceId, Error, Extent, ExtentData, Nid, Result, StoredBlock};

use crate::{
    Blocking, ListedFile, PrefetchKind, Reader, Sink,
    cache::{block_cache::CachedBlock, spill_file::COSTLY_DECODE},
    memory::page_pool::Effort,
    prefetch::{
        controller::{Pressure, StoreRest},
        counters::AheadGuard,
        detectors::{directory::AheadFile, sequential::Ahead},
        neighbours::{Neighbour, Neighbours},
        thresholds::*,
    },
    read::{
        acquire::{BlockSource, Step},
        job::{Costly, Job},
        plan::{Origin, PlannedStep},
        workspace::Workspace,
    },
};

impl Reader {
    /// Notes the start of a read, and returns the window to decode ahead of its reader.
    pub(crate) fn note_read(&self, nid: Nid, range: ByteRange) -> Option<Ahead> {
        self.prefetch().note_read(nid, range, || self.pressure())
    }

    /// Prefetches after a read: the window ahead of a sequential reader, or the next files of a directory walk.
    pub(crate) fn read_ahead(&self, nid: Nid, range: ByteRange, ahead: Option<Ahead>) {
        if let Some(ahead) = ahead {
            self.announce(nid, ahead.range);
            // Errors are ignored: a later demand read reports them.
            return self.read_on(move |reader| drop(reader.decode_ahead(nid, &ahead)));
        }
        if range.offset() > 0 {
            return;
        }
        let files = self.prefetch().next_files(nid, || self.pressure());
        if !files.is_empty() {
            files.iter().for_each(|ahead| self.announce(ahead.file.nid, ByteRange::new(0, ahead.file.size)));
            self.read_on(move |reader| reader.store_files(&files));
        }
    }

    /// The resource that is scarce now.
    fn pressure(&self) -> Pressure {
        let engine = self.engine();
        if engine.switches.ahead_effort() == Effort::BestEffort && engine.pool.is_memory_short() {
            Pressure::Memory
        } else if engine.workers.cpus_are_short() {
            Pressure::Cpus
        } else {
            Pressure::None
        }
    }

    /// Requests the stored bytes of a part of a file from a far source, so that it transfers them while the reader waits for
    /// others.
    fn announce(&self, nid: Nid, range: ByteRange) {
        if self.prefetch().is_far() {
            self.will_need(nid, range);
        }
    }

    /// Requests the stored bytes of a part of a file from the source. Does nothing if the metadata that maps the file is not in
    /// memory.
    fn will_need(&self, nid: Nid, range: ByteRange) {
        self.workspaces.with(|workspace| {
            if self.plan(workspace, nid, range, Blocking::Never).is_err() {
                return;
            }
            let mut asked: Vec<(DeviceId, ByteRange)> = Vec::new();
            for (device, stored) in workspace.planned.iter().filter_map(PlannedStep::stored) {
                match asked.last_mut() {
                    Some((before, range)) if *before == device && range.end() == stored.offset() => {
                        *range = ByteRange::between(range.offset(), stored.end());
                    }
                    _ => asked.push((device, stored)),
                }
            }
            for (device, range) in asked {
                self.engine().sources.will_need(device, range.offset(), range.len());
            }
        });
    }

    /// Whether the thread `floe-around` has prefetch to do, which keeps a CPU busy.
    pub fn is_reading_on(&self) -> bool {
        self.prefetch().is_reading_on()
    }

    /// Notes that these files of a directory were listed to the kernel, in the order of the listing. `is_beginning` says that
    /// they are the first of the listing.
    pub fn note_listed(&self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        self.prefetch().note_listed(directory, is_beginning, files);
    }

    /// The parts of the file to push into the page cache beyond a read: the rest of the blocks that a small read decodes or
    /// finds in memory, and the cluster around it. Of larger reads, the rest of costly blocks that they decode, if the read is
    /// prefetch or many files share the block.
    pub(crate) fn neighbours(&self, nid: Nid, range: ByteRange, extents: &[Extent], steps: &[Step]) -> Neighbours {
        if self.prefetch().page_cache().is_none() || !self.prefetch().has(PrefetchKind::RestOfBlock) {
            return Neighbours::default();
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
        let is_clustered = is_small && extents.iter().all(|extent| self.is_clustered(extent));
        let cluster = if is_clustered { self.prefetch().cluster(nid, range) } else { None };
        let ends = extents.first().into_iter().chain(extents.last().filter(|_| extents.len() > 1));
        let blocks = ends.filter_map(|extent| match extent.data {
            ExtentData::Encoded { block, skip } => {
                let cost = self.engine().costs.estimate(&block);
                let is_shared = Neighbour::is_shared(extent.range, &block);
                let has_more = is_shared || !range.contains(extent.range);
                // A large read of a program comes from the kernel's readahead, which continues anyway: the rest of the
                // block would split its windows. No readahead continues a large read of prefetch.
                let follows_large = (is_shared || self.is_prefetch) && cost >= STORED_ALWAYS_DECODE;
                let is_wanted = has_more && (is_small || follows_large);
                let has_rest = !is_clustered || extent.range.len() >= RESTED_BYTES_MIN;
                let is_wanted = is_wanted && has_rest && !cluster.is_some_and(|cluster| cluster.contains(extent.range));
                let was_cached = was_cached(&block).filter(|_| is_wanted)?;
                let when = self.prefetch().store_rest(cost, is_shared || was_cached)?;
                Some(Neighbour { block, range: extent.range, skip, is_shared, when })
            }
            _ => None,
        });
        Neighbours { blocks: blocks.collect(), cluster }
    }

    /// Whether an extent may be part of a cluster: such bytes are read quickly, and are plain or in blocks much smaller than a
    /// cluster.
    fn is_clustered(&self, extent: &Extent) -> bool {
        match extent.data {
            ExtentData::Hole => false,
            // The bytes of derived sources are computed, and their format reads ahead by itself.
            ExtentData::Plain { device, .. } => !self.engine().sources.is_derived(device),
            ExtentData::Encoded { block, .. } => {
                let len = u64::from(block.decoded_len.bytes());
                let cost = self.engine().costs.estimate(&block);
                (1..=CLUSTER_BLOCK_BYTES_MAX).contains(&len)
                    && cost * (CLUSTER_BYTES / len) as u32 <= CLUSTER_DECODE_MAX
            }
        }
    }

    /// Pushes the rest of the blocks of a read into the page cache, after its reply.
    ///
    /// The rest of cheap blocks may be stored later or be dropped. The rest of costly blocks is stored soon, and the blocks are
    /// held until then: an evicted block would be decoded again for each of its pages.
    pub(crate) fn store_neighbours(&self, nid: Nid, wanted: ByteRange, neighbours: Neighbours) {
        if let Some(page_cache) = self.prefetch().page_cache().filter(|page_cache| page_cache.reads_by_itself(nid)) {
            return self.request_neighbours(nid, page_cache, &neighbours);
        }
        let held = neighbours.cluster.and_then(|cluster| Some((cluster, self.prefetch().hold(cluster.len())?)));
        if let Some((cluster, held)) = held {
            // Otherwise the one thread that stores clusters would wait for the source, one cluster after the other.
            self.will_need(nid, cluster);
            let is_accepted = self.store_after_reply(move |reader| {
                // Errors are ignored: a read of the same range receives them.
                drop((reader.store_cluster(nid, wanted, cluster), held));
            });
            if is_accepted {
                self.prefetch().note_cluster(nid, cluster);
            }
        }
        for neighbour in neighbours.blocks {
            if wanted.contains(neighbour.range) && !self.is_kept(&neighbour) {
                continue;
            }
            let Some(cached) = self.engine().blocks.peek(&neighbour.block) else { continue };
            if !cached.note_store(neighbour.hash(nid)) {
                continue;
            }
            let is_accepted = match neighbour.when {
                StoreRest::Soon => self.store_soon(nid, wanted, neighbour, &cached),
                StoreRest::Later => self.run_around(move |reader| {
                    if let Some(cached) = reader.engine().blocks.peek(&neighbour.block) {
                        reader.store_neighbour(nid, wanted, &neighbour, &cached);
                    }
                }),
            };
            if !is_accepted {
                cached.forget_store();
            }
        }
    }

    /// Asks the page cache to read the neighbours itself.
    fn request_neighbours(&self, nid: Nid, page_cache: &dyn Sink, neighbours: &Neighbours) {
        let cpus_are_short = self.engine().workers.cpus_are_short();
        if let Some(cluster) = neighbours.cluster {
            self.will_need(nid, cluster);
            page_cache.request(nid, cluster, cpus_are_short);
            self.prefetch().note_cluster(nid, cluster);
        }
        for neighbour in &neighbours.blocks {
            let cached = self.engine().blocks.peek(&neighbour.block);
            if cached.is_some_and(|cached| cached.note_store(neighbour.hash(nid))) {
                page_cache.request(nid, neighbour.range, cpus_are_short);
            }
        }
    }

    /// Schedules the storing of the rest of a block. Returns whether there is room to hold the block until then, and a thread.
    fn store_soon(&self, nid: Nid, wanted: ByteRange, neighbour: Neighbour, cached: &Arc<CachedBlock>) -> bool {
        let len = cached.bytes().len() as u64;
        let Some(held) = cached.hold(|| self.prefetch().hold(len)) else { return false };
        let cached = Arc::clone(cached);
        self.store_after_reply(move |reader| {
            reader.store_neighbour(nid, wanted, &neighbour, &cached);
            if reader.is_kept(&neighbour) {
                reader.engine().spill_file.store(&neighbour.block, &cached);
            }
            drop((cached, held));
        })
    }

    /// Runs `work`, which stores bytes in the page cache that a reader is likely to want soon. Returns whether it will run.
    ///
    /// The real-time thread `floe-store` would take the CPU from the reader that just got its reply. So it gets work only
    /// while earlier work still waits.
    fn store_after_reply(&self, work: impl FnOnce(&Self) + Send + 'static) -> bool {
        let (storing, is_alone) = self.prefetch().stores();
        let reader = self.clone();
        let work = Box::new(move || {
            work(&reader);
            drop(storing);
        });
        if is_alone { self.engine().workers.run_around(work) } else { self.engine().workers.store(work) }
    }

    fn store_neighbour(&self, nid: Nid, wanted: ByteRange, neighbour: &Neighbour, cached: &CachedBlock) {
        let Neighbour { range, skip, .. } = neighbour;
        let Some(page_cache) = self.prefetch().page_cache() else { return };
        let before = ByteRange::between(range.offset(), range.end().min(wanted.offset()));
        let after = ByteRange::between(range.offset().max(wanted.end()), range.end());
        let mut is_stored = true;
        for part in [before, after] {
            let page = page_cache.page_bytes();
            let part = ByteRange::between(part.offset().next_multiple_of(page), part.end() - part.end() % page);
            let start = *skip as usize + (part.offset().saturating_sub(range.offset())) as usize;
            let bytes = cached.bytes().get(start..start.saturating_add(part.len() as usize)).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            let stored_len = page_cache.store(nid, part.offset(), bytes);
            self.prefetch().counts.stored(stored_len);
            // The block is needed again for bytes that were not stored.
            is_stored &= stored_len == bytes.len();
        }
        if is_stored && !neighbour.is_shared {
            cached.mark_consumed();
        }
    }

    /// Stores the bytes of a cluster that are contiguous with those of a read in the page cache, as far as their extents may be
    /// part of a cluster.
    fn store_cluster(&self, nid: Nid, wanted: ByteRange, cluster: ByteRange) -> Result<()> {
        let page_bytes = self.prefetch().page_cache().map_or(1, |page_cache| page_cache.page_bytes());
        let part = self.workspaces.with(|workspace| {
            self.plan(workspace, nid, cluster, Blocking::Allowed)?;
            let (mut start, mut end) = (cluster.offset(), cluster.offset());
            for extent in &workspace.extents {
                if self.is_clustered(extent) {
                    end = extent.range.end();
                } else if extent.range.end() <= wanted.offset() {
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
        if part.is_empty() { Ok(()) } else { self.store_part(nid, part).map(drop) }
    }

    /// Whether a block is shared by many files and costly to decode. Such blocks are also kept in the spill file.
    fn is_kept(&self, neighbour: &Neighbour) -> bool {
        neighbour.is_shared && self.engine().costs.estimate(&neighbour.block) >= COSTLY_DECODE
    }

    /// Stores ranges of a file in the page cache, one after the other, until one cannot be stored. The ranges are computed and
    /// read on the thread `floe-store`, which competes with the readers for a CPU. They are dropped if too many work items are
    /// waiting.
    pub fn store_ahead(&self, nid: Nid, ranges: impl Iterator<Item = ByteRange> + Send + 'static) {
        let Some(admitted) = self.prefetch().admit() else { return };
        let reader = self.clone();
        self.engine().workers.store(Box::new(move || {
            drop(admitted);
            for range in ranges {
                if !matches!(reader.store_part(nid, range), Ok(true)) {
                    break;
                }
            }
        }));
    }

    /// Stores the next files of a directory walk in the page cache.
    fn store_files(&self, files: &[AheadFile]) {
        for ahead in files {
            let ListedFile { nid, size } = ahead.file;
            if self.prefetch().is_wanted(ahead) && !matches!(self.store_part(nid, ByteRange::new(0, size)), Ok(true)) {
                break;
            }
        }
    }

    /// Stores a part of a file in the page cache. Returns whether all of it was stored.
    fn store_part(&self, nid: Nid, part: ByteRange) -> Result<bool> {
        let (Some(page_cache), len) = (self.prefetch().page_cache(), part.len() as usize) else { return Ok(false) };
        let effort = self.engine().switches.ahead_effort();
        let mut pages = self.engine().pool.temporary(len, effort).ok_or(Error::NoMemory)?;
        let len = self.read(nid, part.offset(), &mut pages[..len])?;
        let stored_len = page_cache.store(nid, part.offset(), &pages[..len]);
        self.prefetch().counts.stored(stored_len);
        Ok(stored_len == len)
    }

    /// Like [`Reader::run_around`], for work that reads more than was requested.
    fn read_on(&self, work: impl FnOnce(&Self) + Send + 'static) {
        let reading_on = self.prefetch().reads_on();
        self.run_around(move |reader| {
            let _reading_on = reading_on;
            work(reader);
        });
    }

    /// Runs `work` on the thread `floe-around`, and returns whether it will: not if too many work items are waiting, or if the
    /// thread cannot be started.
    fn run_around(&self, work: impl FnOnce(&Self) + Send + 'static) -> bool {
        let Some(admitted) = self.prefetch().admit() else { return false };
        let reader = self.clone();
        self.engine().workers.run_around(Box::new(move || {
            drop(admitted);
            work(&reader);
        }))
    }

    /// Decodes a window ahead of a sequential reader into the block cache.
    fn decode_ahead(&self, nid: Nid, window: &Ahead) -> Result<()> {
        self.workspaces.with(|workspace| {
            self.plan(workspace, nid, window.range, Blocking::Allowed)?;
            let planned = std::mem::take(&mut workspace.planned);
            let result = self.run_ahead(workspace, window, &planned);
            workspace.planned = planned;
            result
        })
    }

    fn run_ahead(&self, workspace: &mut Workspace, window: &Ahead, planned: &[PlannedStep]) -> Result<()> {
        let engine = self.engine();
        let ahead = AheadGuard { window, controller: self.prefetch() };
        let job = Job { engine, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: Some(&ahead) };
        let mut rest = planned;
        while let Some(first) = rest.first() {
            let step_end = first.output.start + AHEAD_STEP_BYTES;
            let count = rest.partition_point(|step| step.output.end <= step_end).max(1);
            let (part, later) = rest.split_at(count);
            rest = later;
            let mut steps = std::mem::take(&mut workspace.steps);
            steps.extend(part.iter().filter_map(|step| self.step_ahead(step, &ahead)));
            let result = job.run(&mut steps, &mut [][..]);
            workspace.steps = steps;
            result?;
        }
        Ok(())
    }

    /// The prefetch step for a planned step. Plain bytes are only requested from the source.
    fn step_ahead(&self, step: &PlannedStep, ahead: &AheadGuard<'_>) -> Option<Step> {
        let engine = self.engine();
        match step.origin {
            Origin::Hole => None,
            Origin::Plain { device, offset } => {
                if !ahead.window.is_cancelled() {
                    engine.sources.will_need(device, offset, step.output.len() as u64);
                }
                None
            }
            Origin::Block { block, .. } => {
                let is_needed = engine.blocks.has_room_for(&block) && !engine.blocks.contains(&block);
                let is_wanted = is_needed && ahead.wants(step.output.end);
                is_wanted.then(|| Step { output: step.output.clone(), source: BlockSource::Ahead { block } })
            }
        }
    }
}
