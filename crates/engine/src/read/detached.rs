//! Reads that continue where waiting is allowed.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use floe_image::{Error, Result, StoredBlock};
use floe_sync::{Mutex, MutexGuard};

use crate::{
    Blocking, PageRun,
    cache::{cached_block::CachedBlock, flight::Flight},
    memory::{admission::Admitted, page_pool::Effort},
    metrics::gauge::Counted,
    read::{
        acquire::{BlockSource, Step, acquire, acquire_block},
        batch::{Batch, Stored},
        file_data::FileData,
        job::{Costly, JOIN_RETRIES_MAX, Job, Output, copy},
        output_sys::{OutputPart, SplitOutput},
        read_around::{Neighbours, ReadAround},
        workspace::Workspace,
    },
};

/// Called once, with the bytes of the read or an error.
pub(crate) type Completion = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// The reply to a read.
pub(crate) struct Reply {
    /// When the read was requested.
    pub(crate) asked: Instant,
    pub(crate) completion: Completion,
}

/// The steps of a mapped read whose blocks were looked up.
pub(crate) struct PreparedRead {
    pub(crate) steps: Vec<Step>,
    /// The number of bytes of the whole read.
    pub(crate) len: usize,
    pub(crate) neighbours: Neighbours,
}

impl PreparedRead {
    /// Plans a read and looks up the bytes of each step.
    ///
    /// # Errors
    /// As [`FileData::plan`].
    pub(crate) fn new(
        read: ReadAround,
        data: &FileData,
        workspace: &mut Workspace,
        blocking: Blocking,
    ) -> Result<Self> {
        let len = data.plan(workspace, read.nid, read.range, blocking)?;
        let mut steps = std::mem::take(&mut workspace.steps);
        acquire(&data.volume, &workspace.planned, &mut steps);
        let neighbours = read.neighbours(data, &workspace.extents, &steps);
        Ok(Self { steps, len, neighbours })
    }
}

/// Blocks with at least this decode time are distributed to the workers one by one.
const SPREAD_DECODE: Duration = Duration::from_micros(200);

/// A read that continues where waiting is allowed: a thread that may wait fetches, the workers decode, and the thread that finishes
/// the last piece completes it. A read that is dropped before its end completes with an error.
pub(crate) struct DetachedRead {
    data: Arc<FileData>,
    read: ReadAround,
    /// The number of unfinished pieces, plus one until all are handed out.
    pending: AtomicUsize,
    retries: AtomicUsize,
    end: Mutex<End>,
    _outstanding: Counted,
    /// The last field to be dropped: other reads may begin once the pages are back in the pool.
    _admitted: Admitted,
}

/// A read that waits until there is memory for it. If it is dropped before, it completes with an error.
struct WaitingRead {
    data: Arc<FileData>,
    read: ReadAround,
    reply: Option<Reply>,
    outstanding: Option<Counted>,
}

struct End {
    /// Set once all parts have been handed out.
    output: Option<SplitOutput>,
    len: usize,
    neighbours: Neighbours,
    error: Option<Error>,
    reply: Option<Reply>,
}

impl DetachedRead {
    /// Continues a `prepared` read, or one from the start if it is not mapped yet. If memory for one more read is
    /// short, the read starts again later.
    pub(crate) fn submit(
        data: Arc<FileData>,
        read: ReadAround,
        pages: PageRun,
        prepared: Option<PreparedRead>,
        reply: Reply,
    ) {
        let volume = Arc::clone(&data.volume);
        let outstanding = volume.outstanding.enter();
        let bytes = pages.len() as u64;
        if let Some(admitted) = volume.content.admission.enter(bytes) {
            let read = Self::new(data, read, reply, outstanding, admitted);
            return volume.fetch_here_if_free(Box::new(move || read.begin(pages, prepared)));
        }
        // Dropping the leads makes the reads that joined them look the blocks up again. The pages go back to the pool.
        drop((prepared, pages));
        let waiting = WaitingRead { data, read, reply: Some(reply), outstanding: Some(outstanding) };
        volume.content.admission.enter_later(bytes, move |admitted| {
            let volume = Arc::clone(&waiting.data.volume);
            volume.fetch_later(Box::new(move || waiting.begin(admitted)));
        });
    }

    fn new(data: Arc<FileData>, read: ReadAround, reply: Reply, outstanding: Counted, admitted: Admitted) -> Arc<Self> {
        let end = End { output: None, len: 0, neighbours: Neighbours::default(), error: None, reply: Some(reply) };
        Arc::new(Self {
            data,
            read,
            pending: AtomicUsize::new(1),
            retries: AtomicUsize::new(0),
            end: Mutex::new(end),
            _outstanding: outstanding,
            _admitted: admitted,
        })
    }

    /// Runs on a thread that may wait.
    fn begin(self: Arc<Self>, pages: PageRun, prepared: Option<PreparedRead>) {
        let result = self.hand_out(pages, prepared);
        self.end_piece(result);
    }

    /// Fetches the stored bytes for the steps, and hands costly decoding to the workers.
    fn hand_out(self: &Arc<Self>, pages: PageRun, prepared: Option<PreparedRead>) -> Result<()> {
        let (data, volume) = (&self.data, &self.data.volume);
        let PreparedRead { mut steps, len, neighbours } = match prepared {
            Some(prepared) => prepared,
            None => {
                data.workspaces.with(|workspace| PreparedRead::new(self.read, data, workspace, Blocking::Allowed))?
            }
        };
        let output = SplitOutput::new(pages, steps.iter().map(|step| step.output.clone()));
        let mut output = HandedOut { read: self, output };
        let job = Job { volume, blocking: Blocking::Allowed, costly: Costly::HandOff, ahead: None };
        let result = job.run(&mut steps, &mut output).map(|joins| {
            joins.into_iter().for_each(|step| self.subscribe(step, &mut output.output));
        });
        let mut end = self.end();
        (end.output, end.len, end.neighbours) = (Some(output.output), len, neighbours);
        result
    }

    /// Lets the thread that decodes the block of a step fill the step's part of the output.
    fn subscribe(self: &Arc<Self>, step: Step, output: &mut SplitOutput) {
        let BlockSource::Join { block, skip, flight } = step.source else { return };
        let part = output.take(step.output);
        self.pending.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self).follow(block, skip, &flight, part);
    }

    /// Fills a part of the output when another read has decoded its block.
    fn follow(
        self: Arc<Self>,
        block: StoredBlock,
        skip: usize,
        flight: &Flight<Arc<CachedBlock>>,
        mut part: OutputPart,
    ) {
        flight.subscribe(Box::new(move |result: Result<Arc<CachedBlock>>| {
            let result = match result {
                Ok(cached) if cached.serves(block.decoded_len) => copy(&cached, &block, skip, &mut part),
                Ok(_) | Err(Error::Cancelled) => {
                    let volume = Arc::clone(&self.data.volume);
                    return volume.fetch_later(Box::new(move || self.look_up_again(block, skip, part)));
                }
                Err(error) => Err(error),
            };
            drop(part);
            self.end_piece(result);
        }));
    }

    /// Fills a part of the output whose block another read should have decoded. Runs on a thread that may wait for the source,
    /// but not for another read: otherwise all such threads could wait for a read that is queued behind them.
    fn look_up_again(self: Arc<Self>, block: StoredBlock, skip: usize, mut part: OutputPart) {
        let source = match self.retries.fetch_add(1, Ordering::Relaxed) {
            0..JOIN_RETRIES_MAX => acquire_block(&self.data.volume, block, skip, part.len()),
            _ => BlockSource::DecodeInto { block, skip },
        };
        if let BlockSource::Join { flight, .. } = &source {
            return Arc::clone(&self).follow(block, skip, flight, part);
        }
        let result = self.run_alone(source, &mut part);
        drop(part);
        self.end_piece(result);
    }

    /// Fills one part of the output on a thread that may wait.
    fn run_alone(&self, source: BlockSource, part: &mut OutputPart) -> Result<()> {
        let volume = &self.data.volume;
        let job = Job { volume, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: None };
        let mut steps = vec![Step { output: 0..part.len(), source }];
        job.run_to_end(&mut steps, &mut part[..])
    }

    /// Ends a piece of the read. The last one completes the read.
    fn end_piece(&self, result: Result<()>) {
        if let Err(error) = result {
            self.end().error.get_or_insert(error.for_inode(self.read.nid));
        }
        // The last piece must see the bytes that the others wrote.
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.answer();
        }
    }

    fn answer(&self) {
        let (output, len, neighbours, error, reply) = {
            let mut end = self.end();
            (end.output.take(), end.len, std::mem::take(&mut end.neighbours), end.error.take(), end.reply.take())
        };
        let Some(Reply { asked, completion }) = reply else { return };
        let pages = output.and_then(SplitOutput::into_pages);
        let result = match (error, &pages) {
            (Some(error), _) => Err(error),
            (None, Some(pages)) => Ok(&pages[..len]),
            (None, None) => Err(Error::Cancelled),
        };
        self.data.volume.engine.latencies.reply(asked, || completion(result));
        self.read.push(&self.data, neighbours);
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock()
    }
}

impl WaitingRead {
    /// Runs on a thread that may wait.
    fn begin(mut self, admitted: Admitted) {
        let (Some(reply), Some(outstanding)) = (self.reply.take(), self.outstanding.take()) else { return };
        let pages = self.data.volume.engine.pool.temporary(self.read.range.len() as usize, Effort::Demand);
        let Some(pages) = pages else { return (reply.completion)(Err(Error::NoMemory)) };
        DetachedRead::new(Arc::clone(&self.data), self.read, reply, outstanding, admitted).begin(pages, None);
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            (reply.completion)(Err(Error::Cancelled));
        }
    }
}

impl Drop for DetachedRead {
    fn drop(&mut self) {
        let end = self.end.get_mut();
        if let Some(reply) = end.reply.take() {
            (reply.completion)(Err(end.error.take().unwrap_or(Error::Cancelled)));
        }
    }
}

/// The output of a read whose costly parts the workers fill.
struct HandedOut<'read> {
    read: &'read Arc<DetachedRead>,
    output: SplitOutput,
}

impl Output for HandedOut<'_> {
    fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        self.output.part(range)
    }

    fn hand_off(&mut self, batch: Batch, stored: Stored, steps: Vec<Step>) {
        let is_spread = batch.decode_cost / batch.block_count.max(1) as u32 >= SPREAD_DECODE;
        let shared = Arc::new((batch, stored));
        let mut own: Vec<(Step, OutputPart)> = Vec::with_capacity(steps.len());
        for step in steps {
            let part = self.output.take(step.output.clone());
            own.push((step, part));
        }
        while !own.is_empty() {
            let pieces = own.split_off(if is_spread { own.len() - 1 } else { 0 });
            let (read, shared) = (Arc::clone(self.read), Arc::clone(&shared));
            self.read.pending.fetch_add(1, Ordering::Relaxed);
            let work = move || {
                let volume = &read.data.volume;
                let job = Job { volume, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: None };
                let (batch, stored) = &*shared;
                let mut pieces = pieces.into_iter();
                let result =
                    pieces.try_for_each(|(step, mut part)| job.decode_step(batch, step, stored.bytes(), &mut part));
                drop(pieces);
                drop(shared);
                read.end_piece(result);
            };
            self.read.data.volume.decompress(Box::new(work));
        }
    }
}
