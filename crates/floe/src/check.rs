//! Checks of whole images.

mod block_reader;
mod erofs;
mod finding;
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

use crate::{
    Format, OpenError, OpenOptions,
    devices::{add_devices, check_flat},
    memory_limit::threads_within_limit,
    sources,
};
use block_reader::CheckedBytes;
pub use finding::{Finding, Severity};

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
    let (source, _, format) = sources::open_image(path, open_options.offset)?;
    // Metadata is read on this thread alone, and data past the engine: a check needs every block once.
    let engine_options = EngineOptions {
        workers: WorkerMode::Inline,
        reserved_pages: 0,
        read_around: false,
        ..open_options.engine.clone()
    };
    let engine = Engine::new(vec![Arc::clone(&source)], &engine_options)
        .map_err(|error| OpenError::Image { path: path.to_owned(), error })?;
    if format == Format::Erofs {
        match add_devices(&engine, path, open_options) {
            Ok(added) if added.paths.is_empty() => {
                check_flat(path, &added.slots, source.len(), erofs::block_size(source.as_ref()))?;
            }
            Ok(_) => {}
            // That is for the check to find.
            Err(OpenError::Image { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let run = Run { engine, options, tell, cancel, tally: Tally::default() };
    let inodes = match format {
        Format::Erofs => erofs::check(&run),
        Format::Squashfs => squashfs::check(&run),
    };
    let inodes = inodes.map_err(|error| OpenError::File { path: path.to_owned(), error })?;
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
