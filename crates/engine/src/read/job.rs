//! The executor of reads.

use std::{ops::Range, sync::Arc, time::Duration};

use floe_image::{DecodedLen, Error, Place, Result, StoredBlock};

use crate::{
    Blocking, SyncDecompress, Volume,
    cache::{
        block_cache::{BlockLookup, Lead},
        cached_block::CachedBlock,
    },
    memory::{page_pool::Effort, prefetch_budget::Unused},
    prefetch::ahead_guard::AheadGuard,
    read::{
        acquire::{BlockSource, Step, acquire_block},
        batch::{Batch, Stored},
    },
};

/// Blocks that decode within this time are cheap, because handing them to another thread would cost as much. The time is that of
/// all blocks of the read so far ([`Costly::Leave`]) or of one batch ([`Costly::HandOff`]).
pub(crate) const CHEAP_DECODE: Duration = Duration::from_micros(500);

/// How often a read looks up again blocks whose leads were dropped or decoded too little. Then it decodes them for itself.
pub(crate) const JOIN_RETRIES_MAX: usize = 64;

/// Executes the steps of a read: fetches adjacent bytes together, decodes, copies. All reads use it: those of the FUSE edge,
/// of the library and of prefetch.
pub(crate) struct Job<'job> {
    pub(crate) volume: &'job Arc<Volume>,
    /// Whether the calling thread may wait for sources.
    pub(crate) blocking: Blocking,
    pub(crate) costly: Costly,
    /// The window that is decoded ahead; `None` for demand.
    pub(crate) ahead: Option<&'job AheadGuard<'job>>,
}

/// The treatment of blocks whose decode is not cheap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Costly {
    /// They are decoded on the calling thread.
    DecodeHere,
    /// Their steps are returned unfinished.
    Leave,
    /// They are fetched and handed off.
    HandOff,
}

/// The outcome of a step that decodes nothing.
enum Ran {
    Done,
    /// It would have to wait.
    Waits(Step),
    /// The spill file could not be read. The step now decodes the block.
    Lost(Step),
}

/// The output that a job fills.
pub(crate) trait Output {
    /// The bytes of one step.
    fn part(&mut self, range: Range<usize>) -> &mut [u8];

    /// Hands these steps, whose blocks were fetched, to other threads to decode. Called only with [`Costly::HandOff`].
    fn hand_off(&mut self, batch: Batch, stored: Stored, steps: Vec<Step>) {
        let _ = (batch, stored, steps);
    }
}

impl Output for [u8] {
    fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self[range]
    }
}

impl Job<'_> {
    /// Requests the stored bytes of all batches behind the first one from a far source: they arrive while the job waits for the
    /// first, instead of one after the other.
    fn request_later_batches(&self, steps: &[Step]) {
        if self.blocking == Blocking::Never || steps.len() < 2 || !self.volume.prefetch.is_far() {
            return;
        }
        let (mut rest, mut is_first) = (steps, true);
        while !rest.is_empty() {
            // Running the steps reports errors.
            let Ok(batch) = Batch::at(self.volume, rest) else { return };
            rest = &rest[batch.as_ref().map_or(1, |batch| batch.block_count.max(1))..];
            if let Some(batch) = batch.filter(|_| !std::mem::take(&mut is_first)) {
                self.volume.sources.will_need(batch.device, batch.start, batch.len as u64);
            }
        }
    }

    /// Runs the steps, and returns the remaining ones: steps that would wait although that is not allowed, costly steps with
    /// [`Costly::Leave`], and steps that joined the decode of another read. If an error drops a step with a lead, the reads
    /// that joined it look the block up again.
    ///
    /// # Errors
    /// The image is corrupt or cannot be read, or memory is exhausted.
    pub(crate) fn run<O: Output + ?Sized>(&self, steps: &mut Vec<Step>, output: &mut O) -> Result<Vec<Step>> {
        self.request_later_batches(steps);
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        let mut cost = Duration::ZERO;
        let mut rest = steps.drain(..);
        while !rest.as_slice().is_empty() {
            let Some(batch) = Batch::at(self.volume, rest.as_slice())? else {
                let Some(step) = rest.next() else { break };
                match self.run_step(step, output)? {
                    Ran::Done => {}
                    Ran::Waits(step) => left.push(step),
                    Ran::Lost(step) => lost.push(step),
                }
                continue;
            };
            let count = batch.block_count;
            cost += batch.decode_cost;
            let is_cheap = match self.costly {
                Costly::DecodeHere => true,
                Costly::Leave => self.is_cheap(cost),
                Costly::HandOff => self.is_cheap(batch.decode_cost),
            };
            if !is_cheap && self.costly == Costly::Leave {
                left.extend(rest.by_ref().take(count));
                continue;
            }
            let stored = match self.fetch_stored(&batch) {
                Ok(stored) => stored,
                Err(Error::WouldBlock) => {
                    left.extend(rest.by_ref().take(count));
                    continue;
                }
                Err(Error::NoMemory) if self.ahead.is_some_and(|ahead| ahead.give_up(count)) => {
                    rest.by_ref().take(count).for_each(drop);
                    continue;
                }
                Err(error) => {
                    // Of several blocks, the other reads may want one that can be fetched.
                    if let (1, Some(Step { source: BlockSource::Lead { lead, .. }, .. })) = (count, rest.next()) {
                        lead.end(Err(error.clone()));
                    }
                    return Err(error);
                }
            };
            if !is_cheap {
                output.hand_off(batch, stored, rest.by_ref().take(count).collect());
                continue;
            }
            for step in rest.by_ref().take(count) {
                let target = if self.ahead.is_some() { &mut [] } else { output.part(step.output.clone()) };
                self.decode_step(&batch, step, stored.bytes(), target)?;
            }
        }
        drop(rest);
        if !lost.is_empty() {
            left.extend(self.run(&mut lost, output)?);
        }
        Ok(left)
    }

    /// Runs the steps to their end, and waits for blocks that other reads decode. The blocks that this read leads are decoded
    /// first, so two reads never wait for each other.
    ///
    /// # Errors
    /// As [`Job::run`].
    pub(crate) fn run_to_end<O: Output + ?Sized>(&self, steps: &mut Vec<Step>, output: &mut O) -> Result<()> {
        let mut left = self.run(steps, output)?;
        let mut retries = 0;
        while let Some(step) = left.pop() {
            let BlockSource::Join { block, skip, flight } = step.source else { return Err(Error::WouldBlock) };
            let target = output.part(step.output.clone());
            if let Some(cached) = self.volume.blocks.join(&flight, &block)? {
                copy(&cached, &block, skip, target)?;
                continue;
            }
            let source = match retries {
                0..JOIN_RETRIES_MAX => acquire_block(self.volume, block, skip, target.len()),
                _ => BlockSource::DecodeInto { block, skip },
            };
            retries += 1;
            left.extend(self.run(&mut vec![Step { output: step.output, source }], output)?);
        }
        Ok(())
    }

    /// Decodes the block of one step of a batch into `target`, the step's part of the output, or only into the cache if it is
    /// ahead of demand.
    ///
    /// # Errors
    /// The block is corrupt, or memory is exhausted.
    pub(crate) fn decode_step(&self, batch: &Batch, step: Step, stored: &[u8], target: &mut [u8]) -> Result<()> {
        match step.source {
            BlockSource::Lead { block, skip, lead } => {
                let result = self.decode_for_cache(&block, batch.stored_of(&block, stored), Effort::Demand);
                let cached = result.map(Arc::new);
                lead.end(cached.clone());
                copy(cached?.as_ref(), &block, skip, target)
            }
            BlockSource::DecodeInto { block, skip } => {
                let decoded = self.volume.decode(&block, batch.stored_of(&block, stored), skip, target)?;
                if decoded < target.len() { Err(too_short(&block)) } else { Ok(()) }
            }
            BlockSource::Ahead { block } => {
                let Some(ahead) = self.ahead.filter(|ahead| ahead.wants(step.output.end)) else { return Ok(()) };
                let Some(unused) = ahead.claim(block.decoded_len.bytes().into()) else {
                    ahead.give_up(1);
                    return Ok(());
                };
                // The lead is taken only now, because reads of the block wait for it from here on.
                let BlockLookup::Lead(lead) = self.volume.blocks.find_or_lead(&block) else { return Ok(()) };
                self.decode_ahead(&block, batch.stored_of(&block, stored), lead, ahead, unused)
            }
            _ => Ok(()),
        }
    }

    fn decode_ahead(
        &self,
        block: &StoredBlock,
        stored: &[u8],
        lead: Lead,
        ahead: &AheadGuard<'_>,
        unused: Arc<Unused>,
    ) -> Result<()> {
        match self.decode_for_cache(block, stored, self.effort()) {
            // Dropping the lead makes the reads that joined it decode the block themselves.
            Err(Error::NoMemory) => {
                ahead.give_up(1);
                Ok(())
            }
            Err(error) => {
                lead.end(Err(error.clone()));
                Err(error)
            }
            Ok(cached) => {
                cached.mark_ahead(unused);
                lead.end(Ok(Arc::new(cached)));
                ahead.decoded();
                Ok(())
            }
        }
    }

    /// Runs a step that decodes nothing.
    fn run_step<O: Output + ?Sized>(&self, step: Step, output: &mut O) -> Result<Ran> {
        let blocking = self.blocking;
        let result = match &step.source {
            BlockSource::Hole => {
                output.part(step.output.clone()).fill(0);
                Ok(())
            }
            BlockSource::Plain { device, offset } => {
                self.volume.fetch(*device, *offset, output.part(step.output.clone()), blocking)
            }
            BlockSource::Cached { cached, block, skip } => copy(cached, block, *skip, output.part(step.output.clone())),
            BlockSource::Spilled { spilled, block, skip } => {
                match spilled.copy(block, *skip, output.part(step.output.clone()), blocking) {
                    Err(Error::Io { .. }) => {
                        self.volume.engine.fragments.forget(&self.volume.blocks.key(block), spilled);
                        let source = BlockSource::DecodeInto { block: *block, skip: *skip };
                        return Ok(Ran::Lost(Step { output: step.output, source }));
                    }
                    copied => copied,
                }
            }
            _ => Err(Error::WouldBlock),
        };
        match result {
            Ok(()) => Ok(Ran::Done),
            Err(Error::WouldBlock) => Ok(Ran::Waits(step)),
            Err(error) => Err(error),
        }
    }

    /// Fetches the stored bytes of a batch into pages of the pool, once the budget has room for them and for the blocks that
    /// are decoded into the cache.
    fn fetch_stored(&self, batch: &Batch) -> Result<Stored> {
        let bytes = batch.len as u64 + batch.led_bytes;
        let budget = &self.volume.content.decode_budget;
        let reservation = match budget.take_now(bytes) {
            Some(reservation) => reservation,
            None if self.blocking.is_allowed() => budget.take(bytes),
            None => return Err(Error::WouldBlock),
        };
        let mut pages = self.volume.engine.pool.temporary(batch.len, self.effort()).ok_or(Error::NoMemory)?;
        self.volume.fetch(batch.device, batch.start, &mut pages[..batch.len], self.blocking)?;
        Ok(Stored::new(pages, batch.len, reservation))
    }

    /// Decodes a block into pages of the cache. If the cache has no room, a demand read uses other pages.
    fn decode_for_cache(&self, block: &StoredBlock, stored: &[u8], effort: Effort) -> Result<CachedBlock> {
        let (volume, engine) = (self.volume, &self.volume.engine);
        let len = block.decoded_len.bytes() as usize;
        let pages = volume.blocks.make_room(&engine.pool, len, effort);
        engine.watch_growth();
        if engine.pool.wants_backing_ahead() {
            let backed = Arc::clone(engine);
            if !engine.run_around(Box::new(move || backed.pool.back_ahead())) {
                engine.pool.leave_unbacked();
            }
        }
        let elsewhere = || (effort == Effort::Demand).then(|| engine.pool.unreserved(len)).flatten();
        let mut pages = pages.or_else(elsewhere).ok_or(Error::NoMemory)?;
        let decoded = volume.decode(block, stored, 0, &mut pages[..len])?;
        let is_complete = !matches!(block.decoded_len, DecodedLen::AtLeast(_));
        Ok(CachedBlock::new(pages, decoded, is_complete))
    }

    fn effort(&self) -> Effort {
        if self.ahead.is_some() { self.volume.switches.ahead_effort() } else { Effort::Demand }
    }

    /// Whether blocks with this decode time are decoded on the thread that has their bytes.
    fn is_cheap(&self, cost: Duration) -> bool {
        match self.volume.switches.sync_decompress() {
            SyncDecompress::Always => true,
            SyncDecompress::Never => false,
            SyncDecompress::Auto => cost <= CHEAP_DECODE,
        }
    }
}

/// Copies decoded bytes from `skip` on.
///
/// # Errors
/// The block ends before `target` is full.
pub(crate) fn copy(cached: &CachedBlock, block: &StoredBlock, skip: usize, target: &mut [u8]) -> Result<()> {
    let bytes = cached.bytes().get(skip..).and_then(|bytes| bytes.get(..target.len()));
    target.copy_from_slice(bytes.ok_or_else(|| too_short(block))?);
    Ok(())
}

fn too_short(block: &StoredBlock) -> Error {
    let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
    Error::corrupt("block ends before the data that it should hold", place)
}
