//! Checks of whole images.

mod block_reader;
mod erofs;
mod squashfs;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use floe_engine::{Engine, EngineOptions, WorkerMode};
use floe_image::{Finding, Severity};

use crate::{Format, ImageFiles, OpenError, OpenOptions, devices::check_flat, memory_limit::threads_within_limit};
use block_reader::CheckedBytes;

/// How an image is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// How many threads decode; at least 1.
    pub jobs: usize,
    /// Whether all data is read and decoded; if not, only metadata is checked.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { jobs: thread::available_parallelism().map_or(1, usize::from), data: true }
    }
}

/// What a check went through, and what it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckSummary {
    /// The format of the image.
    pub format: Format,
    /// Inodes that were checked.
    pub inodes: u64,
    /// Blocks that were decoded.
    pub blocks: u64,
    /// Bytes that were read for data.
    pub stored_bytes: u64,
    /// Bytes that they decoded to.
    pub decoded_bytes: u64,
    /// Things that cannot be read, or read wrong.
    pub errors: u64,
    /// Things that are not as the image says, but do no harm.
    pub warnings: u64,
    /// Whether the check was cancelled before its end.
    pub is_cancelled: bool,
}

/// Checks the image in the file `path`: the superblock and its checksum, every inode, the order of names, the bounds and
/// overlaps of what is stored, link counts and cycles; and that all data decodes. What is wrong is given to `tell`, from
/// any thread, in no order. Setting `cancel` ends the check soon.
///
/// # Errors
/// The file cannot be read, or is no EROFS or SquashFS image. A broken image is not an error: it is a finding.
pub fn check(
    path: &Path,
    open_options: &OpenOptions,
    options: &CheckOptions,
    tell: &(dyn Fn(&Finding) + Sync),
    cancel: &AtomicBool,
) -> Result<CheckSummary, OpenError> {
    check_files(ImageFiles::open(path, open_options)?, &open_options.engine, options, tell, cancel)
}

/// As [`check`], of files that are open already. From here on nothing is opened.
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
    // Metadata is read on this thread alone, and data past the engine: a check needs every block once.
    let engine_options =
        EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, read_around: false, ..engine_options.clone() };
    let mut devices = vec![source];
    // A device table that breaks the format is for the check to find.
    if let Ok(added) = added {
        if format == Format::Erofs && added.sources.is_empty() {
            check_flat(&path, &added.slots, devices[0].len(), erofs::block_size(devices[0].as_ref()))?;
        }
        devices.extend(added.sources);
    }
    let engine =
        Engine::new(devices, &engine_options).map_err(|error| OpenError::Image { path: path.clone(), error })?;
    let run = Run { engine, options, tell, cancel, tally: Tally::default() };
    let inodes = match format {
        Format::Erofs => erofs::check(&run),
        Format::Squashfs => squashfs::check(&run),
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

/// One check; shared by its threads.
struct Run<'a> {
    engine: Arc<Engine>,
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

    /// Runs `work` on as many threads as there are jobs, each with its own decoder, and `meanwhile` on this one.
    ///
    /// # Errors
    /// There is not a single thread to be had; nothing was run.
    fn on_all_jobs<T>(
        &self,
        work: impl Fn(&mut CheckedBytes<'_>) + Sync,
        meanwhile: impl FnOnce() -> T,
    ) -> io::Result<T> {
        thread::scope(|scope| {
            for index in 0..threads_within_limit(self.options.jobs) {
                let run = || work(&mut CheckedBytes::new(&self.engine, &self.tally));
                let started = thread::Builder::new().name(format!("floe-check-{index}")).spawn_scoped(scope, run);
                // With fewer threads it takes longer.
                if index == 0 {
                    started?;
                }
            }
            Ok(meanwhile())
        })
    }
}
