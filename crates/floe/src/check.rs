//! Checks of whole images.

mod block_reader;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
};

use floe_engine::{Blocking, EngineOptions, Volume, VolumeOptions, WorkerMode};
use floe_erofs::check::{Check, DataRun};
use floe_image::{Encoding, Finding, ImageSource, Severity, StoredBlock, StoredLen, start_error};
use floe_squashfs::{Squashfs, check};
use floe_sync::Mutex;

use crate::{
    Format, ImageFiles, OpenError, OpenOptions,
    devices::check_flat,
    memory_limit::{check_thread_start, threads_within_limit},
};
use block_reader::CheckedBytes;

/// Options of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// The number of decoding threads; at least 1.
    pub jobs: usize,
    /// Whether all data is read and decoded. If not, the check covers only metadata.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { jobs: thread::available_parallelism().map_or(1, usize::from), data: true }
    }
}

/// The extent of a check and its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckSummary {
    /// The format of the image.
    pub format: Format,
    /// Checked inodes.
    pub inodes: u64,
    /// Decoded blocks.
    pub blocks: u64,
    /// Stored bytes that were read for data.
    pub stored_bytes: u64,
    /// Bytes that the blocks decoded to.
    pub decoded_bytes: u64,
    /// Findings that make something unreadable, or readable only with wrong content.
    pub errors: u64,
    /// Deviations from the format that do no harm.
    pub warnings: u64,
    /// Whether the caller cancelled the check before its end.
    pub is_cancelled: bool,
}

/// Checks the image in the file `path`: the superblock and its checksum, every inode, the order of names, bounds and
/// overlaps of stored data, link counts, cycles, and that all data decodes. Passes each finding to `tell`, from any
/// thread, in no particular order. The check ends soon after `cancel` is set.
///
/// # Errors
/// The file cannot be read, or is not an EROFS or SquashFS image. A broken image is a finding, not an error.
pub fn check(
    path: &Path,
    open_options: &OpenOptions,
    options: &CheckOptions,
    tell: &(dyn Fn(&Finding) + Sync),
    cancel: &AtomicBool,
) -> Result<CheckSummary, OpenError> {
    check_files(ImageFiles::open(path, open_options)?, &open_options.engine, options, tell, cancel)
}

/// Like [`check()`], for files that are already open. Opens no further files.
///
/// # Errors
/// A file cannot be read, or an extra device is missing.
pub fn check_files(
    files: ImageFiles,
    engine_options: &EngineOptions,
    options: &CheckOptions,
    tell: &(dyn Fn(&Finding) + Sync),
    cancel: &AtomicBool,
) -> Result<CheckSummary, OpenError> {
    let ImageFiles { path, source, format, devices: added, .. } = files;
    // A check needs each block once, so it reads metadata on this thread alone, and data without the engine's caches.
    let engine_options = EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, ..engine_options.clone() };
    let volume_options = VolumeOptions { read_around: false, ..VolumeOptions::default() };
    let mut devices = vec![source];
    // If the device table breaks the format, the check reports it as a finding.
    if let Ok(added) = added {
        if format == Format::Erofs && added.sources.is_empty() {
            check_flat(&path, &added.slots, devices[0].len(), block_size(devices[0].as_ref()))?;
        }
        devices.extend(added.sources);
    }
    let volume = Volume::alone(devices, &engine_options, &volume_options)
        .map_err(|error| OpenError::Image { path: path.clone(), error })?;
    let run = Run { volume, options, tell, cancel, tally: Tally::default() };
    let inodes = match format {
        Format::Erofs => check_erofs(&run),
        Format::Squashfs => check_squashfs(&run),
    };
    let inodes = inodes.map_err(|error| OpenError::File { path, error })?;
    Ok(CheckSummary {
        format,
        inodes,
        blocks: run.tally.blocks.into_inner(),
        stored_bytes: run.tally.stored_bytes.into_inner(),
        decoded_bytes: run.tally.decoded_bytes.into_inner(),
        errors: run.tally.errors.into_inner(),
        warnings: run.tally.warnings.into_inner(),
        is_cancelled: cancel.load(Relaxed),
    })
}

/// One check, shared by its threads.
struct Run<'a> {
    volume: Arc<Volume>,
    options: &'a CheckOptions,
    tell: &'a (dyn Fn(&Finding) + Sync),
    cancel: &'a AtomicBool,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    blocks: AtomicU64,
    stored_bytes: AtomicU64,
    decoded_bytes: AtomicU64,
    errors: AtomicU64,
    warnings: AtomicU64,
}

impl Run<'_> {
    fn report(&self, finding: &Finding) {
        let counter = match finding.severity {
            Severity::Warning => &self.tally.warnings,
            Severity::Error => &self.tally.errors,
        };
        counter.fetch_add(1, Relaxed);
        (self.tell)(finding);
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Relaxed)
    }

    /// Runs `work` on up to `jobs` threads, each with its own decoder, and `meanwhile` on this thread.
    ///
    /// # Errors
    /// Not a single thread could be started, and `work` did not run.
    fn on_all_jobs<T>(
        &self,
        work: impl Fn(&mut CheckedBytes<'_>) + Sync,
        meanwhile: impl FnOnce() -> T,
    ) -> io::Result<T> {
        thread::scope(|scope| {
            for index in 0..threads_within_limit(self.options.jobs) {
                let run = || work(&mut CheckedBytes::new(&self.volume, &self.tally));
                let builder = thread::Builder::new().name(format!("floe-check-{index}"));
                let started = check_thread_start().and_then(|()| builder.spawn_scoped(scope, run));
                // With fewer threads than requested, the check takes longer.
                if index == 0 {
                    started.map_err(start_error)?;
                }
            }
            Ok(meanwhile())
        })
    }
}

/// The offset of the log2 of the block size, in bytes (docs/format/erofs.md, Superblock).
const BLOCK_SIZE_LOG2_OFFSET: u64 = 1024 + 12;

/// Checks an EROFS image and returns its number of inodes.
///
/// # Errors
/// No thread could be started.
fn check_erofs(run: &Run<'_>) -> io::Result<u64> {
    let reader = run.volume.block_reader(Blocking::Allowed);
    let check = match Check::open(reader) {
        Ok(check) => check,
        Err(error) => {
            run.report(&Finding::from(&error));
            return Ok(0);
        }
    };
    let walked = check.walk(&mut |finding| run.report(&finding), &|| run.is_cancelled());
    if run.options.data {
        let (parts, next) = (walked.parts(), AtomicUsize::new(0));
        let work = |bytes: &mut CheckedBytes<'_>| {
            while let Some(part) = parts.get(next.fetch_add(1, Relaxed)).filter(|_| !run.is_cancelled()) {
                let mut each = |data| match data {
                    DataRun::Plain { device, offset, len } => bytes.read(device, offset, len),
                    DataRun::Encoded(block) => bytes.decode(&block).map(drop),
                };
                check.data(&walked, part, &mut each, &mut |finding| run.report(&finding));
            }
        };
        run.on_all_jobs(work, || {})?;
    }
    Ok(walked.inode_count() as u64)
}

/// The block size that the superblock states, in bytes; 0 if it states none.
fn block_size(source: &dyn ImageSource) -> u32 {
    let mut log2 = [0];
    match source.read_at(BLOCK_SIZE_LOG2_OFFSET, &mut log2) {
        Ok(()) => 1u32.checked_shl(log2[0].into()).unwrap_or(0),
        Err(_) => 0,
    }
}

/// The maximum number of batches of blocks that wait for a worker.
const WAITING_BATCHES_MAX: usize = 64;

/// The number of blocks that a worker takes at a time; they are mostly consecutive.
const BATCH_COUNT: usize = 16;

/// Checks a SquashFS image and returns its number of inodes.
///
/// # Errors
/// No thread could be started.
fn check_squashfs(run: &Run<'_>) -> io::Result<u64> {
    let reader = run.volume.block_reader(Blocking::Allowed);
    let squashfs = match Squashfs::open(reader) {
        Ok(squashfs) => squashfs,
        Err(error) => {
            run.report(&Finding::from(&error));
            return Ok(0);
        }
    };
    let (sender, receiver) = sync_channel::<Vec<check::BlockToDecode>>(WAITING_BATCHES_MAX);
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().recv().ok();
    let work = |bytes: &mut CheckedBytes<'_>| {
        while let Some(batch) = next() {
            for block in batch.into_iter().take_while(|_| !run.is_cancelled()) {
                let decoded = match block.block {
                    StoredBlock {
                        device,
                        offset,
                        stored_len: StoredLen::Known(len),
                        encoding: Encoding::Stored,
                        ..
                    } => bytes.read(device, offset, len.into()).map(|()| len as usize),
                    block => bytes.decode(&block),
                };
                if let Some(finding) = block.judge(decoded.as_ref().map(|len| *len)) {
                    run.report(&finding);
                }
            }
        }
    };
    let walk = || {
        let mut batch = Vec::with_capacity(BATCH_COUNT);
        let mut give = |block: Option<check::BlockToDecode>| {
            let is_last = block.is_none();
            batch.extend(block);
            if is_last || batch.len() == BATCH_COUNT {
                // Sending fails only after all workers have ended. The summary then shows that fewer blocks were
                // decoded.
                let _ = sender.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH_COUNT)));
            }
        };
        let found = &mut |finding: Finding| run.report(&finding);
        let to_decode = &mut |block| {
            if run.options.data {
                give(Some(block));
            }
        };
        let summary = check::run(&squashfs, found, to_decode, &|| run.is_cancelled());
        give(None);
        drop(sender);
        summary
    };
    Ok(run.on_all_jobs(work, walk)?.inode_count)
}
