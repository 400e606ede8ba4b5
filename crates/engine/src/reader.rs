//! Reads of file data.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use floe_image::{ByteRange, DecodedLen, Error, FileSystem, Nid, Place, Result, StoredBlock};

use crate::{
    Engine, PageCache, ReadAroundCounters, SyncDecompress, WorkerMode,
    batch::{Batch, Stored, block_to_decode},
    block_cache::{CachedBlock, Lead},
    page_pool::Effort,
    patience,
    read_around::{Neighbour, ReadAround},
    read_job_sys::{ReadJob, Request},
    read_plan::{From, Step, of_block, plan},
    workspace::Workspace,
};

/// Decodes that take no longer together run where their bytes are, unless the switch says otherwise: a hop to another
/// thread would cost as much.
pub(crate) const CHEAP_DECODE: Duration = Duration::from_micros(500);

/// How often a read looks a block up again when the one who was to decode it gave up.
const JOIN_RETRIES_MAX: usize = 16;

/// Reads file data: a format that maps, and the engine that fetches and decodes. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
    file_system: Arc<dyn FileSystem>,
    around: Arc<ReadAround>,
}

/// How far a read came on the thread that took it.
enum Start {
    /// It is done.
    Done(Result<usize>, Vec<Neighbour>),
    /// These steps are left of it (all, if the map is not known yet), to fill so many bytes together with the rest.
    Left(Option<Left>),
}

/// What is left of a read that has been mapped.
pub(crate) struct Left {
    pub(crate) steps: Vec<Step>,
    /// How many bytes the whole read gives.
    pub(crate) len: usize,
    pub(crate) neighbours: Vec<Neighbour>,
}

impl Reader {
    /// A reader of `file_system`, which was opened with `engine`.
    pub fn new(engine: Arc<Engine>, file_system: Arc<dyn FileSystem>) -> Self {
        Self { engine, file_system, around: Arc::default() }
    }

    /// The format.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Names the cache that is given what blocks hold beside the bytes that a read wanted. Only the first counts.
    pub fn set_page_cache(&self, page_cache: Box<dyn PageCache>) {
        self.around.set_page_cache(page_cache);
    }

    /// What read-around has done so far.
    pub fn read_around_counters(&self) -> ReadAroundCounters {
        let (used_blocks, wasted_blocks) = self.engine.blocks.ahead_used_and_wasted();
        self.around.counters(used_blocks, wasted_blocks)
    }

    pub(crate) fn around(&self) -> &Arc<ReadAround> {
        &self.around
    }

    /// Fills `output` with the bytes of a file from `offset` on, and gives how many there were: fewer than asked for
    /// only at the end of the file. All of it happens on the calling thread.
    ///
    /// # Errors
    /// The inode has no data, the image is corrupt or cannot be read.
    pub fn read(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        if range.is_empty() {
            return Ok(0);
        }
        self.engine.workspaces.with(|workspace| {
            let mut steps = std::mem::take(&mut workspace.steps);
            let result =
                self.plan(workspace, nid, range, &mut steps).and_then(|len| self.run(&mut steps, output).map(|()| len));
            // Dropping what is left frees those who wait for it.
            steps.clear();
            workspace.steps = steps;
            result.map_err(|error| error.for_inode(nid))
        })
    }

    /// As [`Reader::read`], into pages of the pool, which `completion` is then given. It runs once, on whichever thread
    /// ends the read, perhaps before this returns. The calling thread never waits for a source unless it was
    /// lent for that ([`Engine::lend_threads`]), and decodes only what is cheap.
    pub fn read_then(&self, nid: Nid, offset: u64, len: u32, completion: impl FnOnce(Result<&[u8]>) + Send + 'static) {
        let asked = Instant::now();
        let Some(mut pages) = self.engine.pool.temporary(len as usize, Effort::Demand) else {
            return completion(Err(Error::NoMemory));
        };
        let range = ByteRange::new(offset, len.into());
        let ahead = self.note_read(nid, range);
        let output = &mut pages[..len as usize];
        let start = if self.engine.workers.mode() == WorkerMode::Inline {
            Start::Done(self.read(nid, offset, output), Vec::new())
        } else {
            self.engine.workspaces.with(|workspace| self.start(workspace, nid, range, output))
        };
        match start {
            Start::Done(result, neighbours) => {
                self.engine.latencies.reply(asked, || completion(result.map(|len| &pages[..len])));
                self.store_neighbours(nid, range, neighbours);
            }
            Start::Left(left) => ReadJob::submit(
                self.clone(),
                nid,
                range,
                pages,
                left,
                Request { asked, completion: Box::new(completion) },
            ),
        }
        self.read_ahead(nid, range, ahead);
    }

    /// Runs `work`, which reads metadata, and gives its result to `completion`: here if nothing has to be waited for,
    /// else on a thread that may wait. `work` may run twice.
    pub fn metadata_then<R: 'static>(
        &self,
        work: impl Fn(&dyn FileSystem) -> Result<R> + Send + 'static,
        completion: impl FnOnce(Result<R>) + Send + 'static,
    ) {
        if self.engine.workers.mode() == WorkerMode::Inline {
            return completion(work(self.file_system.as_ref()));
        }
        match patience::at_hand(|| work(self.file_system.as_ref())) {
            Err(Error::NotAtHand) => {
                let file_system = Arc::clone(&self.file_system);
                let outstanding = self.engine.outstanding.enter();
                self.engine.workers.fetch_here_if_free(Box::new(move || {
                    completion(work(file_system.as_ref()));
                    drop(outstanding);
                }));
            }
            result => completion(result),
        }
    }

    /// Maps `range` and turns it into steps; gives how many bytes they fill.
    pub(crate) fn plan(
        &self,
        workspace: &mut Workspace,
        nid: Nid,
        range: ByteRange,
        steps: &mut Vec<Step>,
    ) -> Result<usize> {
        workspace.extents.clear();
        self.file_system.map(nid, range, &mut workspace.extents)?;
        Ok(plan(range, &workspace.extents, &self.engine.blocks, &self.engine.overflow, steps))
    }

    /// Whether what takes so long to decode is decoded where its bytes are.
    pub(crate) fn decodes_here(&self, cost: Duration) -> bool {
        match self.engine.switches.sync_decompress() {
            SyncDecompress::Always => true,
            SyncDecompress::Never => false,
            SyncDecompress::Auto => cost <= CHEAP_DECODE,
        }
    }

    /// Does what can be done at once.
    fn start(&self, workspace: &mut Workspace, nid: Nid, range: ByteRange, output: &mut [u8]) -> Start {
        let mut steps = std::mem::take(&mut workspace.steps);
        let planned = patience::at_hand(|| self.plan(workspace, nid, range, &mut steps));
        let result = planned.and_then(|len| {
            let neighbours = self.neighbours(range, &workspace.extents, &steps);
            self.run_at_hand(&mut steps, output).map(|()| (len, neighbours))
        });
        let start = match result {
            Err(Error::NotAtHand) => Start::Left(None),
            Err(error) => Start::Done(Err(error.for_inode(nid)), Vec::new()),
            Ok((len, neighbours)) if steps.iter().all(|step| matches!(step.from, From::Done)) => {
                Start::Done(Ok(len), neighbours)
            }
            Ok((len, neighbours)) => {
                let steps = steps.drain(..).filter(|step| !matches!(step.from, From::Done)).collect();
                Start::Left(Some(Left { steps, len, neighbours }))
            }
        };
        steps.clear();
        workspace.steps = steps;
        start
    }

    /// Runs the steps that need no waiting and little time.
    fn run_at_hand(&self, steps: &mut [Step], output: &mut [u8]) -> Result<()> {
        let mut index = 0;
        let mut cost = Duration::ZERO;
        while index < steps.len() {
            let Some(batch) = Batch::at(&self.engine, steps, index)? else {
                let step = &mut steps[index];
                match patience::at_hand(|| run_from_memory(step, output)) {
                    Err(Error::NotAtHand) => {}
                    result => result?,
                }
                index += 1;
                continue;
            };
            index = batch.steps.end;
            cost += batch.decode_cost;
            if !batch.is_plain() && !self.decodes_here(cost) {
                continue;
            }
            match patience::at_hand(|| self.fetch_and_decode(&batch, &mut steps[batch.steps.clone()], output)) {
                Err(Error::NotAtHand) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Runs all steps. What others wait for comes first, so that two reads never wait for each other.
    fn run(&self, steps: &mut [Step], output: &mut [u8]) -> Result<()> {
        let mut index = 0;
        while index < steps.len() {
            match Batch::at(&self.engine, steps, index)? {
                Some(batch) => {
                    self.fetch_and_decode(&batch, &mut steps[batch.steps.clone()], output)?;
                    index = batch.steps.end;
                }
                None => {
                    run_from_memory(&mut steps[index], output)?;
                    index += 1;
                }
            }
        }
        for step in steps.iter_mut().filter(|step| matches!(step.from, From::Join { .. })) {
            let step = Step { output: step.output.clone(), from: std::mem::replace(&mut step.from, From::Done) };
            self.join(step, output)?;
        }
        Ok(())
    }

    /// Fetches a batch and decodes it into the output of its `steps`.
    fn fetch_and_decode(&self, batch: &Batch, steps: &mut [Step], output: &mut [u8]) -> Result<()> {
        if batch.is_plain() {
            let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Ok(()) };
            let target = first.output.start..last.output.end;
            self.engine.fetch(batch.device, batch.start, &mut output[target])?;
            steps.iter_mut().for_each(|step| step.from = From::Done);
            return Ok(());
        }
        let stored = self.fetch_stored(batch, Effort::Demand)?;
        for step in steps {
            let target = &mut output[step.output.clone()];
            let step = Step { output: step.output.clone(), from: std::mem::replace(&mut step.from, From::Done) };
            self.decode_step(batch, step, stored.bytes(), target)?;
        }
        Ok(())
    }

    /// Fetches the stored bytes of a batch into pages of the pool, once there is room for them and for what is decoded.
    pub(crate) fn fetch_stored(&self, batch: &Batch, effort: Effort) -> Result<Stored> {
        let decoding = &self.engine.decoding;
        let bytes = batch.len as u64 + batch.led_bytes;
        let permit = match decoding.take_now(bytes) {
            Some(permit) => permit,
            None if patience::may_wait() => decoding.take(bytes),
            None => return Err(Error::NotAtHand),
        };
        let mut pages = self.engine.pool.temporary(batch.len, effort).ok_or(Error::NoMemory)?;
        self.engine.fetch(batch.device, batch.start, &mut pages[..batch.len])?;
        Ok(Stored::new(pages, batch.len, permit))
    }

    /// Decodes the block of one step of a batch into `target`, the step's part of the output.
    pub(crate) fn decode_step(&self, batch: &Batch, step: Step, stored: &[u8], target: &mut [u8]) -> Result<()> {
        let Some(block) = block_to_decode(&step).copied() else { return Ok(()) };
        let stored = batch.stored_of(&block, stored);
        match step.from {
            From::Lead { skip, lead, .. } => {
                let cached = self.decode_for_all(&block, stored, lead)?;
                copy(&cached, &block, skip, target)
            }
            From::Straight { skip, .. } => {
                let decoded = self.engine.decode(&block, stored, skip, target)?;
                if decoded < target.len() { Err(too_short(&block)) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Decodes a block into pages of the cache and gives it to all who wait for it.
    fn decode_for_all(&self, block: &StoredBlock, stored: &[u8], lead: Lead) -> Result<Arc<CachedBlock>> {
        let result = self.decode_into_pages(block, stored, Effort::Demand).map(Arc::new);
        lead.end(result.clone());
        result
    }

    /// Decodes a block into pages of the cache; into others, for those who wait, where the cache has no room.
    pub(crate) fn decode_into_pages(&self, block: &StoredBlock, stored: &[u8], effort: Effort) -> Result<CachedBlock> {
        let len = block.decoded_len.bytes() as usize;
        let pages = self.engine.blocks.make_room(&self.engine.pool, len, effort);
        if self.engine.pool.wants_backing_ahead() {
            let engine = Arc::clone(&self.engine);
            self.engine.workers.run_around(Box::new(move || engine.pool.back_ahead()));
        }
        let elsewhere = || (effort == Effort::Demand).then(|| self.engine.pool.unreserved(len)).flatten();
        let mut pages = pages.or_else(elsewhere).ok_or(Error::NoMemory)?;
        let decoded = self.engine.decode(block, stored, 0, &mut pages[..len])?;
        let is_complete = !matches!(block.decoded_len, DecodedLen::AtLeast(_));
        Ok(CachedBlock::new(pages, decoded, is_complete))
    }

    /// Waits for a block that another read decodes. Where that one gives up, decodes it here.
    fn join(&self, step: Step, output: &mut [u8]) -> Result<()> {
        let From::Join { block, skip, mut flight } = step.from else { return Ok(()) };
        let target = step.output;
        for _ in 0..JOIN_RETRIES_MAX {
            if let Some(cached) = self.engine.blocks.join(&flight, &block)? {
                return copy(&cached, &block, skip, &mut output[target]);
            }
            match of_block(block, skip, target.len(), &self.engine.blocks, &self.engine.overflow) {
                From::Join { flight: next, .. } => flight = next,
                from => return self.run(&mut [Step { output: target, from }], output),
            }
        }
        Err(Error::Cancelled)
    }
}

/// Runs a step whose bytes are decoded already; leaves any other as it is.
fn run_from_memory(step: &mut Step, output: &mut [u8]) -> Result<()> {
    let target = &mut output[step.output.clone()];
    match &step.from {
        From::Nowhere => target.fill(0),
        From::Cached { cached, block, skip } => copy(cached, block, *skip, target)?,
        From::Overflowed { overflowed, block, skip } => overflowed.copy(block, *skip, target)?,
        _ => return Ok(()),
    }
    step.from = From::Done;
    Ok(())
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
