//! What is read before anybody asks for it.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use floe_image::{ByteRange, Error, ExtentData, Nid, Result, StoredBlock};

use crate::{
    PAGE_BYTES, Reader,
    batch::Batch,
    block_cache::Found,
    hot_regions::HotRegions,
    overflow::COSTLY_DECODE,
    read_plan::{From, Step},
    streams::{Ahead, Streams},
};

/// The most pieces of work that wait at one time; more are dropped.
const WAITING_MAX: usize = 64;

/// Where bytes go that nobody asked for yet: a cache nearer to the readers than the engine's own.
pub trait PageCache: Send + Sync {
    /// Takes the bytes of a file from `offset` on, which begin at a page; gives whether it did. May wait.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> bool;
}

/// What is read before anybody asks for it: the rest of a block that was decoded for a part of it, what follows the
/// bytes of a reader that goes straight on, and the rest of a part of a file that is read piece by piece. All of it happens on a thread of its own, at normal priority, with pages
/// that cost no waiting, and what is not done does not matter.
#[derive(Default)]
pub(crate) struct ReadAround {
    page_cache: OnceLock<Box<dyn PageCache>>,
    streams: Mutex<Streams>,
    hot_regions: HotRegions,
    waiting: AtomicUsize,
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
    /// Blocks left because the reader had gone elsewhere.
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

    /// What the blocks that a read decodes hold of the file beside what it wants.
    pub(crate) fn neighbours(
        &self,
        range: ByteRange,
        extents: &[floe_image::Extent],
        steps: &[Step],
    ) -> Vec<Neighbour> {
        if self.page_cache.get().is_none() {
            return Vec::new();
        }
        let is_decoded = |block: &StoredBlock| {
            steps.iter().any(|step| matches!(&step.from, From::Lead { block: other, .. } if other == block))
        };
        let ends = extents.first().into_iter().chain(extents.last().filter(|_| extents.len() > 1));
        ends.filter_map(|extent| match extent.data {
            ExtentData::Encoded { block, skip } => {
                let neighbour = Neighbour { block, range: extent.range, skip };
                let has_more = !range.contains(extent.range) || neighbour.is_shared();
                (has_more && is_decoded(&block)).then_some(neighbour)
            }
            _ => None,
        })
        .collect()
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
    /// After a read was answered: gives the page cache what its blocks hold beside it.
    pub(crate) fn store_neighbours(&self, nid: Nid, wanted: ByteRange, neighbours: Vec<Neighbour>) {
        if neighbours.is_empty() {
            return;
        }
        let reader = self.clone();
        self.run_around(move || {
            for neighbour in &neighbours {
                reader.store_neighbour(nid, wanted, neighbour);
                reader.keep(neighbour);
            }
        });
    }

    /// Notes a read, and reads on if it follows others.
    pub(crate) fn read_ahead(&self, nid: Nid, range: ByteRange) {
        if !self.engine().switches.read_around() {
            return;
        }
        let ahead = self.around().streams.lock().unwrap_or_else(PoisonError::into_inner).note(nid, range);
        if let Some(ahead) = ahead {
            let reader = self.clone();
            return self.run_around(move || {
                // Whatever is wrong with the image, the demand read that comes later will say it.
                let _ = reader.decode_ahead(nid, &ahead);
            });
        }
        if self.around().page_cache.get().is_none() {
            return;
        }
        let region = self.around().hot_regions.note(nid, range);
        if let Some(region) = region {
            let reader = self.clone();
            self.run_around(move || {
                let _ = reader.store_region(nid, region);
            });
        }
    }

    /// Gives the page cache a part of a file as a whole.
    fn store_region(&self, nid: Nid, region: ByteRange) -> Result<()> {
        let size = self.file_system().attr(nid)?.size;
        let region = ByteRange::between(region.offset(), region.end().min(size));
        let (Some(page_cache), len) = (self.around().page_cache.get(), region.len() as usize) else { return Ok(()) };
        let effort = self.engine().switches.ahead_effort();
        let mut pages = self.engine().pool.temporary(len, effort).ok_or(Error::NoMemory)?;
        let len = self.read(nid, region.offset(), &mut pages[..len])?;
        if page_cache.store(nid, region.offset(), &pages[..len]) {
            self.around().stored_bytes.fetch_add(len as u64, Relaxed);
        }
        Ok(())
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

    fn store_neighbour(&self, nid: Nid, wanted: ByteRange, neighbour: &Neighbour) {
        let Neighbour { block, range, skip } = neighbour;
        let (Some(page_cache), Some(cached)) = (self.around().page_cache.get(), self.engine().blocks.peek(block))
        else {
            return;
        };
        let before = ByteRange::between(range.offset(), range.end().min(wanted.offset()));
        let after = ByteRange::between(range.offset().max(wanted.end()), range.end());
        for part in [before, after] {
            let page = PAGE_BYTES as u64;
            let part = ByteRange::between(part.offset().next_multiple_of(page), part.end() - part.end() % page);
            let start = *skip as usize + (part.offset().saturating_sub(range.offset())) as usize;
            let bytes = cached.bytes().get(start..start.saturating_add(part.len() as usize)).unwrap_or_default();
            if !bytes.is_empty() && page_cache.store(nid, part.offset(), bytes) {
                self.around().stored_bytes.fetch_add(bytes.len() as u64, Relaxed);
            }
        }
    }

    /// Keeps a block that many files share where it is found again when the block cache has let go of it.
    fn keep(&self, neighbour: &Neighbour) {
        let (engine, block) = (self.engine(), &neighbour.block);
        let is_worth_it = neighbour.is_shared() && engine.costs.estimate(block) >= COSTLY_DECODE;
        if is_worth_it && let Some(cached) = engine.blocks.peek(block) {
            engine.overflow.store(block, &cached);
        }
    }

    fn decode_ahead(&self, nid: Nid, ahead: &Ahead) -> Result<()> {
        let engine = self.engine();
        engine.workspaces.with(|workspace| {
            let mut steps = std::mem::take(&mut workspace.steps);
            let result = self.plan(workspace, nid, ahead.range, &mut steps).and_then(|_| {
                self.lead_all(&mut steps);
                let mut index = 0;
                while index < steps.len() {
                    let Some(batch) = Batch::at(engine, &steps, index)? else {
                        index += 1;
                        continue;
                    };
                    index = batch.steps.end;
                    let block_count = batch.block_count as u64;
                    if ahead.is_cancelled() {
                        self.around().cancelled.fetch_add(block_count, Relaxed);
                    } else if batch.is_plain() {
                        engine.will_need(batch.device, batch.start, batch.len as u64);
                    } else {
                        let decoded = self.decode_batch_ahead(workspace, &batch, &mut steps[batch.steps.clone()])?;
                        self.around().ahead_blocks.fetch_add(decoded, Relaxed);
                        self.around().given_up.fetch_add(block_count - decoded, Relaxed);
                    }
                }
                Ok(())
            });
            steps.clear();
            workspace.steps = steps;
            result
        })
    }

    /// Whole blocks too are to be cached, where they would else be decoded into the output.
    fn lead_all(&self, steps: &mut [Step]) {
        for step in steps {
            if let From::Straight { block, .. } = step.from {
                if !self.engine().blocks.has_room_for(&block) {
                    step.from = From::Done;
                    continue;
                }
                step.from = match self.engine().blocks.find_or_lead(&block) {
                    Found::Lead(lead) => From::Lead { block, skip: 0, lead },
                    Found::Ready(_) | Found::InFlight(_) => From::Done,
                };
            }
        }
    }

    /// Gives how many of the blocks were decoded; the others would have cost waiting for pages.
    fn decode_batch_ahead(
        &self,
        workspace: &mut crate::workspace::Workspace,
        batch: &Batch,
        steps: &mut [Step],
    ) -> Result<u64> {
        let effort = self.engine().switches.ahead_effort();
        let stored = match self.fetch_stored(batch, effort) {
            Err(Error::NoMemory) => return Ok(0),
            stored => stored?,
        };
        let mut decoded = 0;
        for step in steps {
            let From::Lead { block, lead, .. } = std::mem::replace(&mut step.from, From::Done) else { continue };
            match self.decode_into_pages(workspace, &block, batch.stored_of(&block, &stored), effort) {
                // Dropping the lead has those who wait decode for themselves.
                Err(Error::NoMemory) => drop(lead),
                Err(error) => {
                    lead.end(Err(error.clone()));
                    return Err(error);
                }
                Ok(cached) => {
                    cached.mark_ahead();
                    lead.end(Ok(Arc::new(cached)));
                    decoded += 1;
                }
            }
        }
        Ok(decoded)
    }
}
