//! The results and failures of an extraction.

use std::{
    fmt, io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::ExtractEvent;
use crate::{Error, FileType};

/// The results of an extraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtractSummary {
    /// Created regular files.
    pub files: u64,
    /// Directories that were created, or that existed and got their attributes.
    pub directories: u64,
    /// Created symbolic links.
    pub symlinks: u64,
    /// Created devices.
    pub devices: u64,
    /// Created named pipes.
    pub fifos: u64,
    /// Created sockets.
    pub sockets: u64,
    /// Hard links: further names of created files.
    pub hard_links: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Entries that are missing or incomplete.
    pub failures: u64,
    /// Entries whose owner this user may not set.
    pub owners_denied: u64,
    /// Devices that this user may not create.
    pub devices_denied: u64,
    /// Extended attributes that this user may not set, or that the target file system does not support.
    pub xattrs_denied: u64,
}

impl ExtractSummary {
    /// The number of entries, owners and attributes that were omitted because this user lacks a privilege or the target
    /// file system lacks support.
    pub fn denied(&self) -> u64 {
        self.owners_denied + self.devices_denied + self.xattrs_denied
    }
}

/// An entry that is missing or incomplete in the target. The extraction continues.
#[derive(Debug)]
pub struct ExtractWarning {
    /// The path in the image.
    pub path: Vec<u8>,
    /// The cause.
    pub cause: ExtractWarningCause,
}

/// The cause of an [`ExtractWarning`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ExtractWarningCause {
    /// The image is corrupt or cannot be read.
    Image(Error),
    /// The target cannot be written: the failed action, and the error.
    Target(&'static str, io::Error),
    /// The image breaks a rule that keeps extraction safe.
    Refused(&'static str),
}

/// Counts results. Shared by all threads.
pub(super) struct Ledger<'a> {
    tell: &'a (dyn Fn(ExtractEvent<'_>) + Sync),
    cancel: &'a AtomicBool,
    fatal: Mutex<Option<io::Error>>,
    is_fatal: AtomicBool,
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    devices: AtomicU64,
    fifos: AtomicU64,
    sockets: AtomicU64,
    hard_links: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    owners_denied: AtomicU64,
    devices_denied: AtomicU64,
    xattrs_denied: AtomicU64,
}

/// An action that this user may not perform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    Owner,
    Device,
    Xattr,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(tell: &'a (dyn Fn(ExtractEvent<'_>) + Sync), cancel: &'a AtomicBool) -> Self {
        Self {
            tell,
            cancel,
            fatal: Mutex::default(),
            is_fatal: AtomicBool::default(),
            files: AtomicU64::default(),
            directories: AtomicU64::default(),
            symlinks: AtomicU64::default(),
            devices: AtomicU64::default(),
            fifos: AtomicU64::default(),
            sockets: AtomicU64::default(),
            hard_links: AtomicU64::default(),
            bytes: AtomicU64::default(),
            failures: AtomicU64::default(),
            owners_denied: AtomicU64::default(),
            devices_denied: AtomicU64::default(),
            xattrs_denied: AtomicU64::default(),
        }
    }

    /// Whether no further work should start.
    pub(super) fn is_over(&self) -> bool {
        self.cancel.load(Relaxed) || self.is_fatal.load(Relaxed)
    }

    /// Starts no further work, because a thread panicked.
    pub(super) fn abandon(&self) {
        self.is_fatal.store(true, Relaxed);
    }

    pub(super) fn tell(&self, event: ExtractEvent<'_>) {
        (self.tell)(event);
    }

    pub(super) fn count_made(&self, file_type: FileType) {
        let counter = match file_type {
            FileType::Regular => &self.files,
            FileType::Directory => &self.directories,
            FileType::Symlink => &self.symlinks,
            FileType::CharacterDevice | FileType::BlockDevice => &self.devices,
            FileType::Fifo => &self.fifos,
            FileType::Socket => &self.sockets,
        };
        counter.fetch_add(1, Relaxed);
        self.tell(ExtractEvent::Made);
    }

    pub(super) fn count_hard_link(&self) {
        self.hard_links.fetch_add(1, Relaxed);
        self.tell(ExtractEvent::Made);
    }

    pub(super) fn count_written(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.tell(ExtractEvent::Written(bytes));
    }

    pub(super) fn count_denied(&self, denied: Denied) {
        let counter = match denied {
            Denied::Owner => &self.owners_denied,
            Denied::Device => &self.devices_denied,
            Denied::Xattr => &self.xattrs_denied,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Records that the entry at `path` is missing or incomplete. A full target ends the extraction.
    pub(super) fn fail(&self, path: Vec<u8>, cause: ExtractWarningCause) {
        self.failures.fetch_add(1, Relaxed);
        if let ExtractWarningCause::Target(_, error) = &cause
            && is_fatal(error)
        {
            let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
            if fatal.is_none() {
                *fatal = error.raw_os_error().map(io::Error::from_raw_os_error);
            }
            self.is_fatal.store(true, Relaxed);
        }
        self.tell(ExtractEvent::Warning(&ExtractWarning { path, cause }));
    }

    /// Returns the results, or the error that ended the extraction; the error is `None` after cancellation.
    pub(super) fn into_summary(self) -> Result<ExtractSummary, Option<io::Error>> {
        if let Some(error) = self.fatal.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(Some(error));
        }
        if self.cancel.load(Relaxed) {
            return Err(None);
        }
        Ok(ExtractSummary {
            files: self.files.into_inner(),
            directories: self.directories.into_inner(),
            symlinks: self.symlinks.into_inner(),
            devices: self.devices.into_inner(),
            fifos: self.fifos.into_inner(),
            sockets: self.sockets.into_inner(),
            hard_links: self.hard_links.into_inner(),
            bytes: self.bytes.into_inner(),
            failures: self.failures.into_inner(),
            owners_denied: self.owners_denied.into_inner(),
            devices_denied: self.devices_denied.into_inner(),
            xattrs_denied: self.xattrs_denied.into_inner(),
        })
    }
}

/// Whether this error of the target will occur for every further file.
fn is_fatal(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

impl fmt::Display for ExtractWarningCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(formatter),
            Self::Target(doing, error) => write!(formatter, "{doing}: {error}"),
            Self::Refused(rule) => write!(formatter, "refused: {rule}"),
        }
    }
}
