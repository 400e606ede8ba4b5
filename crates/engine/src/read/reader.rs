//! Reads of file data.

use std::{sync::Arc, time::Instant};

use floe_image::{ByteRange, Error, FileSystem, Nid, Result};

use crate::{
    Blocking, Engine, PageRun, ReadAroundCounters, Sink, WorkerMode,
    memory::page_pool::Effort,
    prefetch::{controller::Controller, neighbours::Neighbours},
    read::{
        acquire::acquire,
        detached::{DetachedRead, Left, Request},
        job::{Costly, Job, copy},
        plan::{Origin, plan},
        workspace::{Workspace, Workspaces},
    },
};

/// Reads file data: combines a format, which maps, with the engine, which fetches and decodes. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
    file_system: Arc<dyn FileSystem>,
    /// The same file system; its calls never wait for a source.
    non_blocking: Arc<dyn FileSystem>,
    pub(crate) workspaces: Arc<Workspaces>,
    /// Whether its reads are prefetch.
    pub(crate) is_prefetch: bool,
}

/// The state of a read after the work on its first thread.
enum Start {
    /// It is done.
    Done(Result<usize>, Neighbours),
    /// These steps are left; `None` if the read is not mapped yet.
    Left(Option<Left>),
}

impl Reader {
    /// A reader of `file_system`, which was opened with [`Engine::block_reader`].
    pub fn new(engine: Arc<Engine>, file_system: Arc<dyn FileSystem>) -> Self {
        let non_blocking = Arc::clone(&file_system).with_reader(engine.block_reader(Blocking::Never));
        Self { engine, file_system, non_blocking, workspaces: Arc::default(), is_prefetch: false }
    }

    /// The same reader, for reads that a [`Sink`] makes ahead of programs after [`Sink::request`]. No readahead of the kernel
    /// continues them, so the rest of their blocks is prefetched after large reads, too.
    #[must_use]
    pub fn for_prefetch(&self) -> Self {
        Self { is_prefetch: true, ..self.clone() }
    }

    /// The format.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Sets the sink for bytes that are prefetched into a cache outside the engine. Only the first call has an effect.
    pub fn set_page_cache(&self, page_cache: Box<dyn Sink>) {
        self.prefetch().set_page_cache(page_cache);
    }

    /// The counters of prefetch.
    pub fn read_around_counters(&self) -> ReadAroundCounters {
        self.prefetch().counters()
    }

    pub(crate) fn prefetch(&self) -> &Arc<Controller> {
        &self.engine.prefetch
    }

    /// The view of the file system for a caller that may or may not wait for the source.
    fn file_system_for(&self, blocking: Blocking) -> &dyn FileSystem {
        match blocking {
            Blocking::Allowed => self.file_system.as_ref(),
            Blocking::Never => self.non_blocking.as_ref(),
        }
    }

    /// Fills `output` with the bytes of a file from `offset` on, and returns how many there were: fewer than requested only at
    /// the end of the file. All work is done on the calling thread.
    ///
    /// # Errors
    /// The inode has no data, or the image is corrupt or cannot be read.
    pub fn read(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        if range.is_empty() {
            return Ok(0);
        }
        let job = Job { engine: &self.engine, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: None };
        let result = self.workspaces.with(|workspace| {
            let len = self.plan(workspace, nid, range, Blocking::Allowed)?;
            let mut steps = std::mem::take(&mut workspace.steps);
            acquire(&self.engine, &workspace.planned, &mut steps);
            let result = job.run_to_end(&mut steps, output);
            workspace.steps = steps;
            result.map(|()| len)
        });
        result.map_err(|error| error.for_inode(nid))
    }

    /// Like [`Reader::read`], if all bytes are in the cache of decoded blocks: decodes no data and never waits. Returns `None`
    /// otherwise, and after an error, which [`Reader::read`] reports; `output` may then be partly filled.
    pub fn read_cached(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Option<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        self.workspaces.with(|workspace| {
            let len = self.plan(workspace, nid, range, Blocking::Never).ok()?;
            for step in &workspace.planned {
                let target = &mut output[step.output.clone()];
                match step.origin {
                    Origin::Hole => target.fill(0),
                    Origin::Plain { .. } => return None,
                    Origin::Block { block, skip } => {
                        let cached = self.engine.blocks.peek(&block)?;
                        copy(&cached, &block, skip, target).ok()?;
                    }
                }
            }
            Some(len)
        })
    }

    /// Like [`Reader::read`], into pages of the pool, which are passed to `completion`. `completion` runs once, on the thread
    /// that ends the read, possibly before this returns. The calling thread never waits for a source unless it has a permit
    /// for that ([`Engine::permit_blocking`]), and decodes only cheap blocks.
    pub fn read_then(&self, nid: Nid, offset: u64, len: u32, completion: impl FnOnce(Result<&[u8]>) + Send + 'static) {
        let asked = Instant::now();
        let Some(mut pages) = self.engine.pool.temporary(len as usize, Effort::Demand) else {
            return completion(Err(Error::NoMemory));
        };
        let range = ByteRange::new(offset, len.into());
        let ahead = self.note_read(nid, range);
        let output = &mut pages[..len as usize];
        let start = if self.engine.workers.mode() == WorkerMode::Inline {
            Start::Done(self.read(nid, offset, output), Neighbours::default())
        } else {
            self.workspaces.with(|workspace| self.start(workspace, nid, range, output))
        };
        match start {
            Start::Done(result, neighbours) => {
                self.engine.latencies.reply(asked, || completion(result.map(|len| &pages[..len])));
                self.store_neighbours(nid, range, neighbours);
            }
            Start::Left(left) => {
                self.detach(nid, range, pages, left, Request { asked, completion: Box::new(completion) })
            }
        }
        self.read_ahead(nid, range, ahead);
    }

    /// Runs `work` with the file system, whose metadata it reads, and passes the result to `completion`. If `work` ends
    /// in [`Error::WouldBlock`] on the calling thread, it runs a second time on a thread that may wait.
    pub fn metadata_then<R: 'static>(
        &self,
        work: impl Fn(&dyn FileSystem) -> Result<R> + Send + 'static,
        completion: impl FnOnce(Result<R>) + Send + 'static,
    ) {
        if self.engine.workers.mode() == WorkerMode::Inline {
            return completion(work(self.file_system.as_ref()));
        }
        match work(self.non_blocking.as_ref()) {
            Err(Error::WouldBlock) => {
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

    /// Maps `range` and plans its read in the workspace. Returns how many bytes the plan fills.
    pub(crate) fn plan(
        &self,
        workspace: &mut Workspace,
        nid: Nid,
        range: ByteRange,
        blocking: Blocking,
    ) -> Result<usize> {
        workspace.extents.clear();
        workspace.planned.clear();
        self.file_system_for(blocking).map(nid, range, &mut workspace.extents)?;
        Ok(plan(range, &workspace.extents, &mut workspace.planned))
    }

    /// Plans a read and looks up the bytes of each step.
    pub(crate) fn prepare(
        &self,
        workspace: &mut Workspace,
        nid: Nid,
        range: ByteRange,
        blocking: Blocking,
    ) -> Result<Left> {
        let len = self.plan(workspace, nid, range, blocking)?;
        let mut steps = std::mem::take(&mut workspace.steps);
        acquire(&self.engine, &workspace.planned, &mut steps);
        let neighbours = self.neighbours(nid, range, &workspace.extents, &steps);
        Ok(Left { steps, len, neighbours })
    }

    /// Executes the steps that need no waiting and no costly decoding.
    fn start(&self, workspace: &mut Workspace, nid: Nid, range: ByteRange, output: &mut [u8]) -> Start {
        let job = Job { engine: &self.engine, blocking: Blocking::Never, costly: Costly::Leave, ahead: None };
        let Left { mut steps, len, neighbours } = match self.prepare(workspace, nid, range, Blocking::Never) {
            Ok(prepared) => prepared,
            Err(Error::WouldBlock) => return Start::Left(None),
            Err(error) => return Start::Done(Err(error.for_inode(nid)), Neighbours::default()),
        };
        let result = job.run(&mut steps, output);
        workspace.steps = steps;
        match result {
            Err(error) => Start::Done(Err(error.for_inode(nid)), Neighbours::default()),
            Ok(left) if left.is_empty() => Start::Done(Ok(len), neighbours),
            Ok(left) => Start::Left(Some(Left { steps: left, len, neighbours })),
        }
    }

    fn detach(&self, nid: Nid, range: ByteRange, pages: PageRun, left: Option<Left>, request: Request) {
        DetachedRead::submit(self.clone(), nid, range, pages, left, request);
    }
}
