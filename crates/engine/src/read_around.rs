//! What is read before anybody asks for it.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_image::{ByteRange, Error, Extent, ExtentData, Nid, Result, StoredBlock};

use crate::{
    Reader,
    batch::{Batch, block_to_decode},
    block_cache::{CachedBlock, Found, Key},
    gauge::Gauge,
    held_blocks::HeldBlocks,
    hot_regions::HotRegions,
    overflow::COSTLY_DECODE,
    read_plan::{From, Step},
    streams::{Ahead, Streams},
    walks::{AheadFile, ListedFile, Walks},
};

/// So many bytes are decoded ahead of a reader before it is looked where the reader is, and whether memory is short.
const AHEAD_STEP_BYTES: usize = 256 << 10;

/// The most pieces of work that wait at one time; more are dropped.
const WAITING_MAX: usize = 64;

/// Of a block that takes at least so long to decode, the rest is given to the page cache soon: copying takes a fraction of
/// that.
const STORED_SOON_DECODE: Duration = Duration::from_micros(25);

/// Of a block that takes at least so long to decode, it is even while reads are scattered.
const STORED_ALWAYS_DECODE: Duration = Duration::from_micros(100);

/// Blocks that wait for that take at most this part of the cache of decoded blocks.
const HELD_PART: u64 = 4;

/// Where bytes go that nobody asked for yet: a cache nearer to the readers than the engine's own.
pub trait PageCache: Send + Sync {
    /// Takes the bytes of a file from `offset` on, which begin at a page, and end at one or where the file does; gives how
    /// many it took, from the first on. May wait.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize;

    /// The size of its pages in bytes: it keeps nothing smaller.
    fn page_bytes(&self) -> u64;
}

/// What is read before anybody asks for it: the rest of a block that was decoded for a part of it, what follows the
/// bytes of a reader that goes straight on, and the rest of a part of a file that is read piece by piece. All of it happens
/// on a thread of its own, at normal priority, with pages that cost no waiting, and what is not done does not matter; but
/// what was costly to decode is given away by another one, which those that decompress cannot starve, when it comes faster.
#[derive(Default)]
pub(crate) struct ReadAround {
    page_cache: OnceLock<Box<dyn PageCache>>,
    streams: Mutex<Streams>,
    hot_regions: HotRegions,
    walks: Walks,
    waiting: AtomicUsize,
    held: Arc<HeldBlocks>,
    /// Pieces of work that read more than was asked for, waiting or under way.
    reading_on: Gauge,
    ahead_blocks: AtomicU64,
    given_up: AtomicU64,
    cancelled: AtomicU64,
    dropped: AtomicU64,
    stored_bytes: AtomicU64,
}

/// What read-around has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAroundCounters {
    /// Blocks decoded before anybody asked for them.
    pub ahead_blocks: u64,
    /// Of them, those that somebody asked for later.
    pub used_blocks: u64,
    /// Of them, those that left the cache without having been asked for.
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

/// The part of a file that a block holds, of which a read wanted only some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    block: StoredBlock,
    /// The bytes of the file that the block holds.
    range: ByteRange,
    /// How many decoded bytes precede the first of them.
    skip: u32,
}

impl Neighbour {
    /// Whether the most of the block belongs to other files.
    fn is_shared(&self) -> bool {
        self.range.len() < u64::from(self.block.decoded_len.bytes()) / 2
    }
}

impl ReadAround {
    pub(crate) fn set_page_cache(&self, page_cache: Box<dyn PageCache>) {
        // A second one would be told of the same bytes: the first stays.
        let _ = self.page_cache.set(page_cache);
    }

    pub(crate) fn counters(&self, used_blocks: u64, wasted_blocks: u64) -> ReadAroundCounters {
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

impl Reader {
    /// What the blocks that a read decodes hold of the file beside what it wants. While reads are scattered nobody will ask
    /// for that soon: only blocks that many files share are told of then, which may be worth keeping, and those that are
    /// so costly that giving the rest away hardly matters.
    pub(crate) fn neighbours(&self, range: ByteRange, extents: &[Extent], steps: &[Step]) -> Vec<Neighbour> {
        if self.around().page_cache.get().is_none() {
            return Vec::new();
        }
        let is_decoded = |block: &StoredBlock| {
            steps.iter().any(|step| matches!(&step.from, From::Lead { block: other, .. } if other == block))
        };
        let is_dense = self.engine().reads_are_dense();
        let ends = extents.first().into_iter().chain(extents.last().filter(|_| extents.len() > 1));
        ends.filter_map(|extent| match extent.data {
            ExtentData::Encoded { block, skip } => {
                let neighbour = Neighbour { block, range: extent.range, skip };
                let is_told = is_dense || self.engine().costs.estimate(&block) >= STORED_ALWAYS_DECODE;
                let has_more = (is_told && !range.contains(extent.range)) || neighbour.is_shared();
                (has_more && is_decoded(&block)).then_some(neighbour)
            }
            _ => None,
        })
        .collect()
    }

    /// After a read was answered: gives the page cache what its blocks hold beside it.
    ///
    /// What is cheap to decode may wait until the machine has time, or be forgotten. What is costly goes soon, and is held
    /// until then: else a block that was driven out of the block cache meanwhile is decoded again for each of its pages.
    pub(crate) fn store_neighbours(&self, nid: Nid, wanted: ByteRange, neighbours: Vec<Neighbour>) {
        let has_use = |neighbour: &Neighbour| !wanted.contains(neighbour.range) || self.is_kept(neighbour);
        let is_costly = |neighbour: &Neighbour| self.engine().costs.estimate(&neighbour.block) >= STORED_SOON_DECODE;
        let (soon, later): (Vec<_>, Vec<_>) = neighbours.into_iter().filter(has_use).partition(is_costly);
        for neighbour in soon {
            self.store_soon(nid, wanted, neighbour);
        }
        if later.is_empty() {
            return;
        }
        let reader = self.clone();
        self.run_around(move || {
            for neighbour in &later {
                if let Some(cached) = reader.engine().blocks.peek(&neighbour.block) {
                    reader.store_neighbour(nid, wanted, neighbour, &cached);
                }
            }
        });
    }

    fn store_soon(&self, nid: Nid, wanted: ByteRange, neighbour: Neighbour) {
        let Some(cached) = self.engine().blocks.peek(&neighbour.block) else { return };
        let len = cached.bytes().len() as u64;
        let len_max = self.engine().pool.cache_bytes() as u64 / HELD_PART;
        let Some(held) = self.around().held.hold(Key::of(&neighbour.block), len, len_max) else {
            self.around().dropped.fetch_add(1, Relaxed);
            return;
        };
        let is_first = held.is_first();
        let reader = self.clone();
        let work = Box::new(move || {
            reader.store_neighbour(nid, wanted, &neighbour, &cached);
            reader.keep(&neighbour, &cached);
            drop(cached);
            drop(held);
        });
        // A real-time thread would take the CPU from the reader that was just answered: it is only for what comes while
        // the other one has not got to the last block yet.
        if is_first { self.engine().workers.run_around(work) } else { self.engine().workers.store(work) }
    }

    /// Notes a read that begins; gives what to read ahead of its reader.
    pub(crate) fn note_read(&self, nid: Nid, range: ByteRange) -> Option<Ahead> {
        if !self.engine().switches.read_around() {
            return None;
        }
        self.around().streams.lock().unwrap_or_else(PoisonError::into_inner).note(nid, range)
    }

    /// After a read was taken care of: reads on, if it follows others.
    pub(crate) fn read_ahead(&self, nid: Nid, range: ByteRange, ahead: Option<Ahead>) {
        if !self.engine().switches.read_around() {
            return;
        }
        if let Some(ahead) = ahead {
            let reader = self.clone();
            let reading_on = self.around().reading_on.enter();
            return self.run_around(move || {
                let _reading_on = reading_on;
                // Whatever is wrong with the image, the demand read that comes later will say it.
                let _ = reader.decode_ahead(nid, &ahead);
            });
        }
        if self.around().page_cache.get().is_none() {
            return;
        }
        if range.offset() == 0 {
            let files = self.around().walks.note_read(nid);
            if !files.is_empty() {
                self.store_files(files);
            }
        }
        let region = self.around().hot_regions.note(nid, range);
        if let Some(region) = region {
            let (reader, reading_on) = (self.clone(), self.around().reading_on.enter());
            self.run_around(move || {
                let _reading_on = reading_on;
                let _ = reader.store_region(nid, region);
            });
        }
    }

    /// Whether the thread that reads around has something to read, so that a CPU is not idle.
    pub fn is_reading_on(&self) -> bool {
        self.around().reading_on.now() > 0
    }

    /// Notes that the readers of the page cache were told of these files of a directory, in the order in which it lists
    /// them. `is_beginning` says that its list begins with them.
    pub fn note_listed(&self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        if self.engine().switches.read_around() {
            self.around().walks.note_listed(directory, is_beginning, files);
        }
    }

    /// Gives the page cache files that a reader comes to next.
    fn store_files(&self, files: Vec<AheadFile>) {
        let (reader, reading_on) = (self.clone(), self.around().reading_on.enter());
        self.run_around(move || {
            let _reading_on = reading_on;
            for ahead in &files {
                let ListedFile { nid, size } = ahead.file;
                if reader.around().walks.is_wanted(ahead)
                    && !matches!(reader.store_part(nid, ByteRange::new(0, size)), Ok(true))
                {
                    break;
                }
            }
        });
    }

    /// Gives the page cache a part of a file that was read piece by piece.
    fn store_region(&self, nid: Nid, region: ByteRange) -> Result<()> {
        let size = self.file_system().attr(nid)?.size;
        self.store_part(nid, ByteRange::between(region.offset(), region.end().min(size))).map(drop)
    }

    /// Gives the page cache a part of a file; gives whether it took it.
    fn store_part(&self, nid: Nid, part: ByteRange) -> Result<bool> {
        let (Some(page_cache), len) = (self.around().page_cache.get(), part.len() as usize) else { return Ok(false) };
        let effort = self.engine().switches.ahead_effort();
        let mut pages = self.engine().pool.temporary(len, effort).ok_or(Error::NoMemory)?;
        let len = self.read(nid, part.offset(), &mut pages[..len])?;
        let stored_len = page_cache.store(nid, part.offset(), &pages[..len]);
        self.around().stored_bytes.fetch_add(stored_len as u64, Relaxed);
        Ok(stored_len == len)
    }

    fn run_around(&self, work: impl FnOnce() + Send + 'static) {
        let around = Arc::clone(self.around());
        if around.waiting.fetch_add(1, Relaxed) >= WAITING_MAX {
            around.waiting.fetch_sub(1, Relaxed);
            around.dropped.fetch_add(1, Relaxed);
            return;
        }
        let work = move || {
            around.waiting.fetch_sub(1, Relaxed);
            work();
        };
        self.engine().workers.run_around(Box::new(work));
    }

    fn store_neighbour(&self, nid: Nid, wanted: ByteRange, neighbour: &Neighbour, cached: &CachedBlock) {
        let Neighbour { range, skip, .. } = neighbour;
        let Some(page_cache) = self.around().page_cache.get() else { return };
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
            self.around().stored_bytes.fetch_add(stored_len as u64, Relaxed);
            // Who wants what was not taken comes back for it.
            is_stored &= stored_len == bytes.len();
        }
        if is_stored && !neighbour.is_shared() {
            cached.mark_spent();
        }
    }

    /// Keeps a block where it is found again when the block cache has let go of it, if that is worth it.
    fn keep(&self, neighbour: &Neighbour, cached: &CachedBlock) {
        if self.is_kept(neighbour) {
            self.engine().overflow.store(&neighbour.block, cached);
        }
    }

    /// Whether a block is one that many files share and that is costly to decode.
    fn is_kept(&self, neighbour: &Neighbour) -> bool {
        neighbour.is_shared() && self.engine().costs.estimate(&neighbour.block) >= COSTLY_DECODE
    }

    fn decode_ahead(&self, nid: Nid, ahead: &Ahead) -> Result<()> {
        self.engine().workspaces.with(|workspace| {
            let mut steps = std::mem::take(&mut workspace.steps);
            let result =
                self.plan(workspace, nid, ahead.range, &mut steps).and_then(|_| self.run_ahead(ahead, &mut steps));
            steps.clear();
            workspace.steps = steps;
            result
        })
    }

    fn run_ahead(&self, ahead: &Ahead, steps: &mut [Step]) -> Result<()> {
        let engine = self.engine();
        steps.iter_mut().for_each(lead_nothing);
        let mut index = 0;
        while index < steps.len() {
            let step_end = steps[index].output.start + AHEAD_STEP_BYTES;
            let end = steps.partition_point(|step| step.output.end <= step_end).max(index + 1);
            let Some(batch) = Batch::at(engine, &steps[..end], index)? else {
                index += 1;
                continue;
            };
            index = batch.steps.end;
            let steps = &steps[batch.steps.clone()];
            let is_passed = steps.last().is_some_and(|step| step.output.end as u64 <= ahead.passed_bytes());
            if is_passed || ahead.is_cancelled() {
                self.around().cancelled.fetch_add(batch.block_count as u64, Relaxed);
            } else if batch.is_plain() {
                engine.will_need(batch.device, batch.start, batch.len as u64);
            } else {
                self.decode_batch_ahead(ahead, &batch, steps)?;
            }
        }
        Ok(())
    }

    fn decode_batch_ahead(&self, ahead: &Ahead, batch: &Batch, steps: &[Step]) -> Result<()> {
        let (engine, around) = (self.engine(), self.around());
        let effort = engine.switches.ahead_effort();
        let stored = match self.fetch_stored(batch, effort) {
            Err(Error::NoMemory) => {
                around.given_up.fetch_add(batch.block_count as u64, Relaxed);
                return Ok(());
            }
            stored => stored?,
        };
        for step in steps {
            let Some(block) = block_to_decode(step).filter(|block| engine.blocks.has_room_for(block)) else { continue };
            if step.output.end as u64 <= ahead.passed_bytes() {
                around.cancelled.fetch_add(1, Relaxed);
                continue;
            }
            // Only now, as whoever wants the block from here on waits for it.
            let Found::Lead(lead) = engine.blocks.find_or_lead(block) else { continue };
            match self.decode_into_pages(block, batch.stored_of(block, stored.bytes()), effort) {
                // Dropping the lead has those who wait decode for themselves.
                Err(Error::NoMemory) => {
                    drop(lead);
                    around.given_up.fetch_add(1, Relaxed);
                }
                Err(error) => {
                    lead.end(Err(error.clone()));
                    return Err(error);
                }
                Ok(cached) => {
                    cached.mark_ahead();
                    lead.end(Ok(Arc::new(cached)));
                    around.ahead_blocks.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    }
}

/// Has a step wait for its turn: nobody is to wait for a block that is far from being decoded.
fn lead_nothing(step: &mut Step) {
    if let From::Lead { block, skip, .. } = step.from {
        step.from = From::Straight { block, skip };
    }
}
