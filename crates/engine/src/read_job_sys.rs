//! A read that has left the thread that took it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use floe_image::{ByteRange, Error, Nid, Result};

use crate::{
    PageRun, Reader,
    admission::Admitted,
    batch::Batch,
    block_cache::CachedBlock,
    gauge::Counted,
    page_pool::Effort,
    read_around::Neighbour,
    read_plan::{From, Step, of_block},
    reader::{Left, copy},
    shared_pages_sys::SharedPages,
};

/// Who asked for the read: called once, with its bytes.
pub(crate) type Completion = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// When a read was asked for, and by whom.
pub(crate) struct Request {
    pub(crate) asked: Instant,
    pub(crate) completion: Completion,
}

/// Blocks that take at least so long to decode are spread over the CPUs one by one.
const SPREAD_DECODE: Duration = Duration::from_micros(200);

/// How often a read as a whole looks blocks up again that others were to decode and did not.
const RETRIES_MAX: usize = 64;

/// A read that has left the thread that took it: fetched where waiting does no harm, decoded on the workers, answered
/// by the thread that does its last piece. A read that is dropped before its end is answered with an error.
pub(crate) struct ReadJob {
    reader: Reader,
    nid: Nid,
    range: ByteRange,
    output: SharedPages,
    /// Pieces of work under way or to come, and one for the thread that hands them out.
    pending: AtomicUsize,
    retries: AtomicUsize,
    end: Mutex<End>,
    _outstanding: Counted,
    /// The last to go: others may begin when the pages are back.
    _admitted: Admitted,
}

/// A read that waits until there is memory for it. One that is dropped before that is answered with an error.
struct WaitingRead {
    reader: Reader,
    nid: Nid,
    range: ByteRange,
    request: Option<Request>,
    outstanding: Option<Counted>,
}

struct End {
    len: usize,
    neighbours: Vec<Neighbour>,
    error: Option<Error>,
    request: Option<Request>,
}

impl ReadJob {
    /// Has the rest of a read done; all of it where the map is not known yet.
    pub(crate) fn submit(
        reader: Reader,
        nid: Nid,
        range: ByteRange,
        output: PageRun,
        left: Option<Left>,
        request: Request,
    ) {
        let engine = Arc::clone(reader.engine());
        let outstanding = engine.outstanding.enter();
        let bytes = output.len() as u64;
        if let Some(admitted) = engine.admission.enter(bytes) {
            let (steps, job) = Self::new(reader, nid, range, output, left, request, outstanding, admitted);
            return engine.workers.fetch_here_if_free(Box::new(move || job.begin(steps)));
        }
        // Who waits for what this read was to decode looks for another one to do it, and the pages go to others.
        drop((left, output));
        let waiting = WaitingRead { reader, nid, range, request: Some(request), outstanding: Some(outstanding) };
        engine.admission.enter_later(bytes, move |admitted| {
            let engine = Arc::clone(waiting.reader.engine());
            engine.workers.fetch(Box::new(move || waiting.begin(admitted)));
        });
    }

    #[expect(clippy::too_many_arguments, reason = "all that a read is made of")]
    fn new(
        reader: Reader,
        nid: Nid,
        range: ByteRange,
        output: PageRun,
        left: Option<Left>,
        request: Request,
        outstanding: Counted,
        admitted: Admitted,
    ) -> (Option<Vec<Step>>, Arc<Self>) {
        let (steps, len, neighbours) = match left {
            Some(Left { steps, len, neighbours }) => (Some(steps), len, neighbours),
            None => (None, 0, Vec::new()),
        };
        let job = Arc::new(Self {
            reader,
            nid,
            range,
            output: SharedPages::new(output),
            pending: AtomicUsize::new(1),
            retries: AtomicUsize::new(0),
            end: Mutex::new(End { len, neighbours, error: None, request: Some(request) }),
            _outstanding: outstanding,
            _admitted: admitted,
        });
        (steps, job)
    }

    /// On a thread that may wait.
    fn begin(self: Arc<Self>, steps: Option<Vec<Step>>) {
        let steps = match steps {
            Some(steps) => Ok(steps),
            None => self.plan(),
        };
        let result = steps.and_then(|steps| self.hand_out(steps));
        self.end_piece(result);
    }

    fn plan(&self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let engine = self.reader.engine();
        let (len, neighbours) = engine.workspaces.with(|workspace| {
            let len = self.reader.plan(workspace, self.nid, self.range, &mut steps)?;
            Ok::<_, Error>((len, self.reader.neighbours(self.range, &workspace.extents, &steps)))
        })?;
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        (end.len, end.neighbours) = (len, neighbours);
        drop(end);
        Ok(steps)
    }

    /// Fetches what the steps need and hands the decoding out.
    fn hand_out(self: &Arc<Self>, mut steps: Vec<Step>) -> Result<()> {
        let mut index = 0;
        while index < steps.len() {
            match Batch::at(self.reader.engine(), &steps, index)? {
                Some(batch) => {
                    index = batch.steps.end;
                    self.fetch(batch, &mut steps)?;
                }
                None => {
                    let step = Step {
                        output: steps[index].output.clone(),
                        from: std::mem::replace(&mut steps[index].from, From::Done),
                    };
                    index += 1;
                    self.run_or_join(step)?;
                }
            }
        }
        Ok(())
    }

    fn fetch(self: &Arc<Self>, batch: Batch, steps: &mut [Step]) -> Result<()> {
        let steps = &mut steps[batch.steps.clone()];
        if batch.is_plain() {
            let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Ok(()) };
            let range = first.output.start..last.output.end;
            // SAFETY: the outputs of the steps of one read are disjoint, and these steps are this call's alone.
            let target = unsafe { self.output.part_mut(range) };
            return self.reader.engine().fetch(batch.device, batch.start, target);
        }
        let stored = Arc::new(self.reader.fetch_stored(&batch, Effort::Demand)?);
        let mut own: Vec<Step> = steps.iter_mut().map(take_step).collect();
        if self.reader.decodes_here(batch.decode_cost) {
            return own.into_iter().try_for_each(|step| self.decode(&batch, step, stored.bytes()));
        }
        let is_spread = batch.decode_cost / batch.block_count.max(1) as u32 >= SPREAD_DECODE;
        let batch = Arc::new(batch);
        while !own.is_empty() {
            let part = own.split_off(if is_spread { own.len() - 1 } else { 0 });
            let (job, batch, stored) = (Arc::clone(self), Arc::clone(&batch), Arc::clone(&stored));
            self.pending.fetch_add(1, Ordering::Relaxed);
            let work = move || {
                let result = part.into_iter().try_for_each(|step| job.decode(&batch, step, stored.bytes()));
                drop(stored);
                job.end_piece(result);
            };
            self.reader.engine().workers.decompress(Box::new(work));
        }
        Ok(())
    }

    fn decode(&self, batch: &Batch, step: Step, stored: &[u8]) -> Result<()> {
        // SAFETY: the outputs of the steps of one read are disjoint, and this step is this call's alone.
        let target = unsafe { self.output.part_mut(step.output.clone()) };
        self.reader.decode_step(batch, step, stored, target)
    }

    fn run_or_join(self: &Arc<Self>, step: Step) -> Result<()> {
        // SAFETY: as in `decode`.
        let target = unsafe { self.output.part_mut(step.output.clone()) };
        match step.from {
            From::Nowhere => target.fill(0),
            From::Cached { cached, block, skip } => copy(&cached, &block, skip, target)?,
            From::Overflowed { overflowed, block, skip } => overflowed.copy(&block, skip, target)?,
            From::Join { block, skip, flight } => {
                let job = Arc::clone(self);
                let output = step.output;
                self.pending.fetch_add(1, Ordering::Relaxed);
                flight.subscribe(Box::new(move |result: Result<Arc<CachedBlock>>| match result {
                    Ok(cached) if cached.serves(block.decoded_len) => {
                        // SAFETY: as in `decode`.
                        let target = unsafe { job.output.part_mut(output) };
                        job.end_piece(copy(&cached, &block, skip, target));
                    }
                    Ok(_) | Err(Error::Cancelled | Error::NotAtHand)
                        if job.retries.fetch_add(1, Ordering::Relaxed) < RETRIES_MAX =>
                    {
                        let engine = Arc::clone(job.reader.engine());
                        let again = move || {
                            let from = {
                                let engine = job.reader.engine();
                                of_block(block, skip, output.len(), &engine.blocks, &engine.overflow)
                            };
                            let result = job.hand_out(vec![Step { output, from }]);
                            job.end_piece(result);
                        };
                        engine.workers.fetch(Box::new(again));
                    }
                    Ok(_) => job.end_piece(Err(Error::Cancelled)),
                    Err(error) => job.end_piece(Err(error)),
                }));
            }
            From::Plain { .. } | From::Straight { .. } | From::Lead { .. } | From::Done => {}
        }
        Ok(())
    }

    /// Ends a piece of the read; the last one answers.
    fn end_piece(&self, result: Result<()>) {
        if let Err(error) = result {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.error.get_or_insert(error.for_inode(self.nid));
        }
        // What the other pieces wrote must be seen by the last one.
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.answer();
        }
    }

    fn answer(&self) {
        let (len, neighbours, error, request) = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            (end.len, std::mem::take(&mut end.neighbours), end.error.take(), end.request.take())
        };
        let Some(Request { asked, completion }) = request else { return };
        let result = match error {
            Some(error) => Err(error),
            // SAFETY: every piece has ended, so nobody writes any more.
            None => Ok(unsafe { self.output.filled(len) }),
        };
        self.reader.engine().latencies.reply(asked, || completion(result));
        self.reader.store_neighbours(self.nid, self.range, neighbours);
    }
}

impl WaitingRead {
    /// On a thread that may wait.
    fn begin(mut self, admitted: Admitted) {
        let (Some(request), Some(outstanding)) = (self.request.take(), self.outstanding.take()) else { return };
        let pages = self.reader.engine().pool.temporary(self.range.len() as usize, Effort::Demand);
        let Some(output) = pages else { return (request.completion)(Err(Error::NoMemory)) };
        let (reader, nid, range) = (self.reader.clone(), self.nid, self.range);
        let (steps, job) = ReadJob::new(reader, nid, range, output, None, request, outstanding, admitted);
        job.begin(steps);
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            (request.completion)(Err(Error::Cancelled));
        }
    }
}

impl Drop for ReadJob {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(request) = end.request.take() {
            (request.completion)(Err(end.error.take().unwrap_or(Error::Cancelled)));
        }
    }
}

fn take_step(step: &mut Step) -> Step {
    Step { output: step.output.clone(), from: std::mem::replace(&mut step.from, From::Done) }
}
