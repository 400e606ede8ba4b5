//! Extraction of an image into a directory.

mod descriptors;
mod ledger;
mod metadata;
mod names;
mod piece;
mod planner;
mod selection;
mod task;
mod tree;
mod worker;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::AtomicBool,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use crate::{Attr, Image, Nid, memory_limit::threads_within_limit};

use descriptors::Descriptors;
use ledger::Ledger;
pub use ledger::{ExtractSummary, ExtractWarning, ExtractWarningCause};
use planner::Planner;
use task::Task;
use tree::{Directories, TreeDirectory};
use worker::Worker;

/// How many tasks may wait for a worker.
const WAITING_TASKS_MAX: usize = 256;

/// How an image is extracted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtractOptions {
    /// How many threads decode and write; at least 1. There are fewer where the limits of open files and of
    /// address space are too low for all.
    pub jobs: usize,
    /// Whether files that are in the way are replaced.
    pub force: bool,
    /// Whether owners and groups are set.
    pub owners: bool,
    /// Whether modes are set; if not, they are those of the image without the bits of the umask.
    pub modes: bool,
    /// Whether times are set.
    pub times: bool,
    /// Which extended attributes are set.
    pub xattrs: XattrSelection,
    /// The directory of the image that is taken for its root.
    pub root: Option<Nid>,
}

/// Which extended attributes are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrSelection {
    /// All of them.
    All,
    /// Those whose names begin with `user.`.
    User,
    /// None.
    None,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        Self { jobs, force: false, owners: true, modes: true, times: true, xattrs: XattrSelection::All, root: None }
    }
}

/// Which parts of an image are extracted. Paths are kept, so the directories that lead to a part are made too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts<'a> {
    /// All of it.
    All,
    /// What lies under these paths.
    Below(&'a [Vec<u8>]),
    /// What these paths name, and nothing that lies below.
    Only(&'a [Vec<u8>]),
}

/// What an extraction tells while it runs, from any of its threads.
#[derive(Clone, Copy, Debug)]
pub enum ExtractEvent<'a> {
    /// Something was found in the image and will be made.
    Planned {
        /// Where in the image.
        path: &'a [u8],
        /// What it is.
        attr: &'a Attr,
    },
    /// A file, link or special file is done.
    Made,
    /// So many bytes of files were written.
    Written(u64),
    /// Something went wrong; the extraction goes on.
    Warning(&'a ExtractWarning),
}

/// Why an extraction could not begin, or broke off.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractError {
    /// The target directory cannot be made, opened or written to.
    Target {
        /// The directory.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// A path that was asked for is not in the image.
    Path(crate::PathError),
    /// The extraction was cancelled; what was half written is gone.
    Cancelled,
}

/// Extracts `parts` of an image into the directory `target`, which is made if it is missing.
///
/// Owners, modes, times to the nanosecond, extended attributes, hard links, holes and special files are kept. Nothing is
/// ever written outside `target`: every name is looked up in a directory that this extraction made or found there as a
/// real directory, and links are never followed. What is in the way is left alone, unless `options.force`. A file that
/// cannot be read whole is removed again.
///
/// Files are read in the order in which they are stored, those that share a block by one thread, so that each block is
/// decoded once. Setting `cancel` ends the extraction soon.
///
/// # Errors
/// The target cannot be used, a path is not in the image, or the extraction was cancelled. All else is counted in the
/// summary and told as [`ExtractEvent::Warning`].
pub fn extract(
    image: &Image,
    parts: Parts<'_>,
    target: &Path,
    options: &ExtractOptions,
    tell: &(dyn Fn(ExtractEvent<'_>) + Sync),
    cancel: &AtomicBool,
) -> Result<ExtractSummary, ExtractError> {
    let root_nid = options.root.unwrap_or_else(|| image.root());
    let selection = selection::select(image, root_nid, parts).map_err(ExtractError::Path)?;
    let at_target = |error: io::Error| ExtractError::Target { path: target.to_owned(), error };
    let root_attr = image.attr(root_nid).map_err(|error| ExtractError::Path(error.into()))?;
    let root = TreeDirectory::open_root(target, root_attr).map_err(at_target)?;
    let ledger = Ledger::new(tell, cancel);
    let descriptors = Descriptors::for_jobs(threads_within_limit(options.jobs));
    let worker = |directories| Worker::new(image, options, &ledger, directories);

    let (sender, receiver) = sync_channel::<Task>(WAITING_TASKS_MAX);
    let receiver = Mutex::new(receiver);
    let planned = thread::scope(|scope| {
        for index in 0..descriptors.threads {
            let run = || {
                let mut worker = worker(Directories::new(descriptors.directories_max));
                while let Some(task) = next(&receiver) {
                    worker.run(task);
                }
            };
            let started = thread::Builder::new().name(format!("floe-extract-{index}")).spawn_scoped(scope, run);
            if let Err(error) = started
                && index == 0
            {
                return Err(at_target(error));
            }
        }
        let mut planner = Planner::new(image, options, &ledger, sender, root, descriptors);
        planner.plan(&selection, matches!(parts, Parts::Only(_)));
        Ok(planner.into_rest())
    })?;
    // The workers are done: the rest needs the files to be there.
    let mut worker = worker(planned.directories);
    for link in planned.links {
        worker.link(link);
    }
    for directory in planned.made.iter().rev() {
        worker.finish_directory(directory);
    }
    ledger.into_summary().map_err(|error| match error {
        Some(error) => at_target(error),
        None => ExtractError::Cancelled,
    })
}

fn next(receiver: &Mutex<Receiver<Task>>) -> Option<Task> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

impl fmt::Display for ExtractError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target { path, error } => write!(formatter, "{}: {error}", path.display()),
            Self::Path(error) => error.fmt(formatter),
            Self::Cancelled => formatter.write_str("cancelled; what was half written is removed"),
        }
    }
}

impl std::error::Error for ExtractError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Target { error, .. } => Some(error),
            Self::Path(error) => Some(error),
            Self::Cancelled => None,
        }
    }
}
