//! Extracts an image into a directory.

mod descriptors;
mod ledger;
mod metadata;
mod outcome;
mod planner;
mod task;
mod tree;
mod worker;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use floe_image::{ShownName, start_error};
use floe_sync::Mutex;

use crate::{
    Attr, FileType, Image, Nid, Timestamp, WalkEntry,
    memory_limit::{check_thread_start, threads_within_limit},
};

use descriptors::Descriptors;
use ledger::Ledger;
pub use outcome::{ExtractAction, ExtractOmission, ExtractPart, ExtractSummary, ExtractWarning, ExtractWarningCause};
use planner::{Planner, Selected};
use task::Task;
pub use tree::ExtractTarget;
use tree::{Directories, TreeDirectory};
use worker::Worker;

/// The maximum number of tasks that wait for a worker.
const WAITING_TASKS_MAX: usize = 256;

/// Options of an extraction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtractOptions {
    /// The number of threads that decode and write; at least 1. Fewer are started if the limits of open files or of
    /// address space are too low.
    pub jobs: usize,
    /// Whether existing files are replaced, and empty directories in the place of other files.
    pub force: bool,
    /// Whether owners and groups are set.
    pub owners: bool,
    /// Whether modes are set. If not, files get the mode of the image without the bits of the umask.
    pub modes: bool,
    /// Whether times are set.
    pub times: bool,
    /// The time that everything gets, instead of the times in the image.
    pub time: Option<Timestamp>,
    /// Which extended attributes are set.
    pub xattrs: XattrSelection,
    /// Whether a target that has entries gets the attributes of the root. A target that is created, or empty, always
    /// gets them.
    pub finish_root: bool,
    /// The directory of the image that serves as the root of the extraction.
    pub root: Option<Nid>,
}

/// Which extended attributes are set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XattrSelection {
    /// All of them.
    All,
    /// Attributes whose names begin with `user.`.
    User,
    /// Attributes whose names the filter accepts.
    Accepted(XattrFilter),
    /// None.
    None,
}

/// Decides by its name whether an extended attribute is set.
#[derive(Clone)]
pub struct XattrFilter(Arc<Accepts>);

type Accepts = dyn Fn(&[u8]) -> bool + Send + Sync;

impl XattrFilter {
    /// A filter that accepts the names for which `accepts` returns true. It is called from all threads.
    pub fn new(accepts: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(accepts))
    }
}

impl XattrSelection {
    /// Whether the attribute of this name is set.
    pub fn includes(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::User => name.starts_with(b"user."),
            Self::Accepted(filter) => (filter.0)(name),
            Self::None => false,
        }
    }
}

/// A filter equals only its clones.
impl PartialEq for XattrFilter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for XattrFilter {}

impl fmt::Debug for XattrFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("XattrFilter").finish_non_exhaustive()
    }
}

impl Default for ExtractOptions {
    fn default() -> Self {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        Self {
            jobs,
            force: false,
            owners: true,
            modes: true,
            times: true,
            time: None,
            xattrs: XattrSelection::All,
            finish_root: true,
            root: None,
        }
    }
}

/// Which parts of an image are extracted. The paths are kept, so their parent directories are created as well.
pub enum Parts<'a> {
    /// The whole image.
    All,
    /// These paths with everything below them.
    Below(&'a [Vec<u8>]),
    /// The root, and the entries that a filter selects. It is called for each entry, in the order of a
    /// [`Walk`](crate::Walk) from the root, unless it took or left out the entry's whole directory.
    Where(&'a mut dyn FnMut(&WalkEntry) -> Choice),
}

/// The decision of a filter about an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// It is extracted. If it is a directory, the filter is called for its entries.
    Take,
    /// It is extracted, with everything below it.
    TakeAll,
    /// It is left out, with everything below it.
    LeaveOut,
}

/// Progress of an extraction, reported from any of its threads.
#[derive(Clone, Copy, Debug)]
pub enum ExtractEvent<'a> {
    /// An entry of the image will be extracted.
    Planned {
        /// Its path in the image.
        path: &'a [u8],
        /// Its attributes.
        attr: &'a Attr,
    },
    /// A file, link or special file is complete.
    Made,
    /// This many bytes were written to files.
    Written(u64),
    /// Parts of an entry were left out, because this user lacks a privilege or the target file system lacks support.
    Omitted {
        /// Its path in the image.
        path: &'a [u8],
        /// Its attributes.
        attr: &'a Attr,
        /// The parts that were left out; at least one.
        parts: &'a [ExtractOmission],
    },
    /// A part of the extraction failed; the other parts continue.
    Warning(&'a ExtractWarning),
}

/// Why an extraction could not start, or ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractError {
    /// The target directory cannot be created, opened or written.
    Target {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A requested path is not in the image.
    Path(crate::PathError),
    /// The caller cancelled the extraction; unfinished files were removed.
    Cancelled,
}

/// Extracts `parts` of an image into the directory `target`, which is created if it is missing.
///
/// Preserves owners, modes, times to the nanosecond, extended attributes, hard links, holes and special files. Never
/// writes outside `target`: every name is looked up in a directory that this extraction created or found there as a
/// real directory, and links are never followed. Existing files stay, unless `options.force` is set; directories with
/// entries stay always. A file that cannot be read completely is removed again. Where the target cannot have a hard link,
/// because its names are on different file systems or a file has too many, the file is copied.
///
/// Files are read in the order in which they are stored, and one thread reads all files that share a block, so that
/// each block is decoded once. The extraction ends soon after `cancel` is set.
///
/// # Errors
/// The root of the extraction is not a directory, the target cannot be used, a path is not in the image, or the extraction
/// was cancelled. All other failures are counted in the summary and reported as [`ExtractEvent::Warning`]. What this user
/// may not do, or the target does not support, is counted and reported as [`ExtractEvent::Omitted`].
pub fn extract(
    image: &Image,
    parts: Parts<'_>,
    target: impl Into<ExtractTarget>,
    options: &ExtractOptions,
    tell: &(dyn Fn(ExtractEvent<'_>) + Sync),
    cancel: &AtomicBool,
) -> Result<ExtractSummary, ExtractError> {
    let root_nid = options.root.unwrap_or_else(|| image.root());
    let (selection, filter) = match parts {
        Parts::All => (vec![Selected::ROOT], None),
        Parts::Where(filter) => (vec![Selected::ROOT], Some(filter)),
        Parts::Below(paths) => (planner::select(image, root_nid, paths).map_err(ExtractError::Path)?, None),
    };
    let target = target.into();
    let target_path = target.path().to_owned();
    let at_target = |error: io::Error| ExtractError::Target { path: target_path.clone(), error };
    let root_attr = image.attr(root_nid).map_err(|error| ExtractError::Path(error.into()))?;
    if root_attr.file_type != FileType::Directory {
        return Err(ExtractError::Path(crate::PathError::NotADirectory { path: b"/".to_vec() }));
    }
    let root = TreeDirectory::open_root(target, root_attr).map_err(at_target)?;
    let ledger = Ledger::new(tell, cancel);
    let descriptors = Descriptors::for_jobs(threads_within_limit(options.jobs));
    let worker = |directories| Worker::new(image, options, &ledger, directories);

    let (sender, receiver) = sync_channel::<Task>(WAITING_TASKS_MAX);
    // The workers own the receiver, so that sending fails once none is left.
    let receiver = Arc::new(Mutex::new(receiver));
    let planned = thread::scope(|scope| {
        for index in 0..descriptors.threads {
            let receiver = Arc::clone(&receiver);
            let run = || {
                let receiver = receiver;
                let _guard = EndOnPanic(&ledger);
                let mut worker = worker(Directories::new(descriptors.directories_max));
                while let Some(task) = next(&receiver) {
                    worker.run(task);
                }
            };
            let builder = thread::Builder::new().name(format!("floe-extract-{index}"));
            let started = check_thread_start().and_then(|()| builder.spawn_scoped(scope, run));
            if let Err(error) = started
                && index == 0
            {
                return Err(at_target(start_error(error)));
            }
        }
        drop(receiver);
        let mut planner = Planner::new(image, options, &ledger, sender, root, descriptors);
        planner.plan(&selection, filter);
        Ok(planner.into_rest())
    })?;
    // The workers are done. Links and directory attributes need all files to exist.
    let mut worker = worker(planned.directories);
    for link in planned.links {
        worker.link(link);
    }
    for directory in planned.made.iter().rev() {
        worker.finish_directory(directory);
    }
    worker.check_special_files();
    ledger.into_summary().map_err(|error| match error {
        Some(error) => at_target(error),
        None => ExtractError::Cancelled,
    })
}

/// Ends the extraction if its thread panics.
struct EndOnPanic<'a>(&'a Ledger<'a>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}

fn next(receiver: &Mutex<Receiver<Task>>) -> Option<Task> {
    receiver.lock().recv().ok()
}

impl fmt::Display for ExtractError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target { path, error } => write!(formatter, "{}: {error}", path.shown()),
            Self::Path(error) => error.fmt(formatter),
            Self::Cancelled => formatter.write_str("cancelled; incomplete files were removed"),
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
