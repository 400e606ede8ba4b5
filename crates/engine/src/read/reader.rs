//! The reader of one volume.

use std::{sync::Arc, time::Instant};

use floe_image::{ByteRange, Error, FileSystem, Nid, Result};

use crate::{
    AdoptedThread, Blocking, Engine, ListedFile, ReadAroundCounters, Sink, Volume, WorkerMode,
    memory::page_pool::Effort,
    read::{
        detached::{DetachedRead, PreparedRead, Reply},
        file_data::FileData,
        job::{Costly, Job},
        read_around::{Neighbours, ReadAround},
        workspace::Workspace,
    },
};

/// Reads file data: combines a format, which maps, with a volume, whose engine fetches and decodes. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    data: Arc<FileData>,
    /// Whether its reads are prefetch.
    is_prefetch: bool,
}

/// The state of a read after the work on its first thread.
enum Start {
    /// It is done.
    Done(Result<usize>, Neighbours),
    /// These steps are left; `None` if the read is not mapped yet.
    Left(Option<PreparedRead>),
}

impl Reader {
    /// A reader of `file_system`, which was opened with [`Volume::block_reader`].
    pub fn new(volume: Arc<Volume>, file_system: Arc<dyn FileSystem>) -> Self {
        Self { data: Arc::new(FileData::new(volume, file_system)), is_prefetch: false }
    }

    /// The same reader, for reads that a [`Sink`] makes ahead of programs after [`Sink::request`]. No readahead of the kernel
    /// continues them, so the rest of their blocks is prefetched after large reads, too.
    #[must_use]
    pub fn for_prefetch(&self) -> Self {
        Self { is_prefetch: true, ..self.clone() }
    }

    /// The format.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.data.file_system
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.data.volume
    }

    /// The engine to which the volume is attached.
    pub fn engine(&self) -> &Arc<Engine> {
        self.data.volume.engine()
    }

    /// Fills `output` with the bytes of a file from `offset` on, and returns how many there were: fewer than requested only at
    /// the end of the file. All work is done on the calling thread.
    ///
    /// # Errors
    /// The inode has no data, or the image is corrupt or cannot be read.
    pub fn read(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        self.data.read(nid, offset, output)
    }

    /// Like [`Reader::read`], if all bytes are in the cache of decoded blocks: decodes no data and never waits. Returns `None`
    /// otherwise, and after an error, which [`Reader::read`] reports; `output` may then be partly filled.
    pub fn read_cached(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Option<usize> {
        self.data.read_cached(nid, offset, output)
    }

    /// Like [`Reader::read`], into pages of the pool, which are passed to `completion`. `completion` runs once, on the thread
    /// that ends the read, possibly before this returns. The calling thread never waits for a source unless it has a permit
    /// for that ([`Volume::permit_blocking`]), and decodes only cheap blocks.
    pub fn read_then(&self, nid: Nid, offset: u64, len: u32, completion: impl FnOnce(Result<&[u8]>) + Send + 'static) {
        let asked = Instant::now();
        let (data, engine) = (&self.data, &self.data.volume.engine);
        let Some(mut pages) = engine.pool.temporary(len as usize, Effort::Demand) else {
            return completion(Err(Error::NoMemory));
        };
        let read = ReadAround { nid, range: ByteRange::new(offset, len.into()), is_prefetch: self.is_prefetch };
        let ahead = read.note(data);
        let output = &mut pages[..len as usize];
        let start = if engine.workers.mode() == WorkerMode::Inline {
            Start::Done(data.read(nid, offset, output), Neighbours::default())
        } else {
            data.workspaces.with(|workspace| self.start(workspace, read, output))
        };
        match start {
            Start::Done(result, neighbours) => {
                engine.latencies.reply(asked, || completion(result.map(|len| &pages[..len])));
                read.push(data, neighbours);
            }
            Start::Left(prepared) => {
                let reply = Reply { asked, completion: Box::new(completion) };
                DetachedRead::submit(Arc::clone(data), read, pages, prepared, reply);
            }
        }
        read.prefetch(data, ahead);
    }

    /// Executes the steps of a read that need no waiting and no costly decoding.
    fn start(&self, workspace: &mut Workspace, read: ReadAround, output: &mut [u8]) -> Start {
        let job = Job { volume: &self.data.volume, blocking: Blocking::Never, costly: Costly::Leave, ahead: None };
        let failed = |error: Error| Start::Done(Err(error.for_inode(read.nid)), Neighbours::default());
        let PreparedRead { mut steps, len, neighbours } =
            match PreparedRead::new(read, &self.data, workspace, Blocking::Never) {
                Ok(prepared) => prepared,
                Err(Error::WouldBlock) => return Start::Left(None),
                Err(error) => return failed(error),
            };
        let result = job.run(&mut steps, output);
        workspace.steps = steps;
        match result {
            Err(error) => failed(error),
            Ok(left) if left.is_empty() => Start::Done(Ok(len), neighbours),
            Ok(left) => Start::Left(Some(PreparedRead { steps: left, len, neighbours })),
        }
    }

    /// Runs `work` with the file system, whose metadata it reads, and passes the result to `completion`. If `work` ends
    /// in [`Error::WouldBlock`] on the calling thread, it runs a second time on a thread that may wait.
    pub fn metadata_then<R: 'static>(
        &self,
        work: impl Fn(&dyn FileSystem) -> Result<R> + Send + 'static,
        completion: impl FnOnce(Result<R>) + Send + 'static,
    ) {
        let FileData { volume, file_system, non_blocking, .. } = &*self.data;
        if volume.engine.workers.mode() == WorkerMode::Inline {
            return completion(work(file_system.as_ref()));
        }
        match work(non_blocking.as_ref()) {
            Err(Error::WouldBlock) => {
                let file_system = Arc::clone(file_system);
                let outstanding = volume.outstanding.enter();
                volume.fetch_here_if_free(Box::new(move || {
                    completion(work(file_system.as_ref()));
                    drop(outstanding);
                }));
            }
            result => completion(result),
        }
    }

    /// Sets the sink for bytes that are prefetched into a cache outside the engine. Only the first call has an effect.
    pub fn set_sink(&self, sink: Box<dyn Sink>) {
        self.data.volume.prefetch.set_sink(sink);
    }

    /// The counters of prefetch.
    pub fn read_around_counters(&self) -> ReadAroundCounters {
        self.data.volume.prefetch.counters()
    }

    /// Whether the thread `floe-around` has prefetch to do, which keeps a CPU busy.
    pub fn is_prefetching(&self) -> bool {
        self.data.volume.prefetch.is_prefetching()
    }

    /// Notes that these files of a directory were listed to the kernel, in the order of the listing. `is_beginning` says that
    /// they are the first of the listing.
    pub fn note_listed(&self, directory: Nid, is_beginning: bool, files: &[ListedFile]) {
        self.data.volume.prefetch.note_listed(directory, is_beginning, files);
    }

    /// Pushes ranges of a file into the page cache, one after the other, until one cannot be pushed. The ranges are computed and
    /// read on the thread `floe-store`, which competes with the readers for a CPU. They are dropped if too many work items are
    /// waiting.
    pub fn push_ahead(&self, nid: Nid, mut ranges: impl Iterator<Item = ByteRange> + Send + 'static) {
        let Some(admitted) = self.data.volume.prefetch.admit() else { return };
        let data = Arc::clone(&self.data);
        self.data.volume.run_store(Box::new(move || {
            drop(admitted);
            while ranges.next().is_some_and(|range| matches!(data.push_part(nid, range), Ok(true))) {}
        }));
    }

    /// Pushes a range of a file of a recorded launch into the page cache, on the calling thread, which has the priority of the
    /// decoders meanwhile. The range grows to whole pages. If the cache takes no bytes of a file but reads them itself
    /// ([`Sink::reads_by_itself`]), it is asked to do so. A range that cannot be read is skipped: programs that read it receive
    /// the error. Returns the number of bytes that were pushed or asked for.
    pub fn push_for_launch(&self, thread: &AdoptedThread, nid: Nid, range: ByteRange) -> u64 {
        let _working = thread.work();
        self.data.push_whole_pages(nid, range).unwrap_or(0)
    }

    /// Whether other processes need the memory that a replay would use. A slow page allocation alone does not count: a virtual
    /// machine may wait for its host while memory is ample, and a launch that is not replayed is slower than one such wait.
    pub fn is_memory_scarce(&self) -> bool {
        self.data.volume.engine.pool.is_memory_scarce()
    }
}
