//! Counts the results and failures of an extraction.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use floe_sync::Mutex;

use super::{
    ExtractEvent,
    outcome::{ExtractOmission, ExtractPart, ExtractSummary, ExtractWarning, ExtractWarningCause},
    task::SpecialFile,
};
use crate::{Attr, FileType};

/// Counts results. Shared by all threads.
pub(super) struct Ledger<'a> {
    tell: &'a (dyn Fn(ExtractEvent<'_>) + Sync),
    cancel: &'a AtomicBool,
    fatal: Mutex<Option<io::Error>>,
    is_fatal: AtomicBool,
    special_files: Mutex<Vec<SpecialFile>>,
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    devices: AtomicU64,
    fifos: AtomicU64,
    sockets: AtomicU64,
    hard_links: AtomicU64,
    hard_links_copied: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    owners_denied: AtomicU64,
    devices_denied: AtomicU64,
    modes_denied: AtomicU64,
    times_denied: AtomicU64,
    xattrs_denied: AtomicU64,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(tell: &'a (dyn Fn(ExtractEvent<'_>) + Sync), cancel: &'a AtomicBool) -> Self {
        Self {
            tell,
            cancel,
            fatal: Mutex::default(),
            is_fatal: AtomicBool::default(),
            special_files: Mutex::default(),
            files: AtomicU64::default(),
            directories: AtomicU64::default(),
            symlinks: AtomicU64::default(),
            devices: AtomicU64::default(),
            fifos: AtomicU64::default(),
            sockets: AtomicU64::default(),
            hard_links: AtomicU64::default(),
            hard_links_copied: AtomicU64::default(),
            bytes: AtomicU64::default(),
            failures: AtomicU64::default(),
            owners_denied: AtomicU64::default(),
            devices_denied: AtomicU64::default(),
            modes_denied: AtomicU64::default(),
            times_denied: AtomicU64::default(),
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

    /// Notes a special file, to look at it in the end.
    pub(super) fn note_special_file(&self, file: SpecialFile) {
        self.special_files.lock().push(file);
    }

    pub(super) fn take_special_files(&self) -> Vec<SpecialFile> {
        std::mem::take(&mut *self.special_files.lock())
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
        if file_type != FileType::Directory {
            self.tell(ExtractEvent::Made);
        }
    }

    pub(super) fn count_hard_link(&self) {
        self.hard_links.fetch_add(1, Relaxed);
        self.tell(ExtractEvent::Made);
    }

    pub(super) fn count_written(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.tell(ExtractEvent::Written(bytes));
    }

    /// Counts and reports the parts of an entry that were left out; `path` is called only if there are any.
    pub(super) fn omit(&self, path: impl FnOnce() -> Vec<u8>, attr: &Attr, parts: &[ExtractOmission]) {
        for omission in parts {
            let counter = match omission.part {
                ExtractPart::Entry => &self.devices_denied,
                ExtractPart::Owner => &self.owners_denied,
                ExtractPart::Mode => &self.modes_denied,
                ExtractPart::Time => &self.times_denied,
                ExtractPart::Xattr(_) => &self.xattrs_denied,
                ExtractPart::HardLink => &self.hard_links_copied,
            };
            counter.fetch_add(1, Relaxed);
        }
        if !parts.is_empty() {
            self.tell(ExtractEvent::Omitted { path: &path(), attr, parts });
        }
    }

    /// Records that the entry at `path` is missing or incomplete. A full target ends the extraction.
    pub(super) fn fail(&self, path: Vec<u8>, cause: ExtractWarningCause) {
        self.failures.fetch_add(1, Relaxed);
        self.warn(path, cause);
    }

    /// Reports a problem of an entry that is recorded already, or need not be. A full target ends the extraction.
    pub(super) fn warn(&self, path: Vec<u8>, cause: ExtractWarningCause) {
        if let ExtractWarningCause::Target(_, error) = &cause
            && is_fatal(error)
        {
            let mut fatal = self.fatal.lock();
            if fatal.is_none() {
                *fatal = error.raw_os_error().map(io::Error::from_raw_os_error);
            }
            self.is_fatal.store(true, Relaxed);
        }
        self.tell(ExtractEvent::Warning(&ExtractWarning { path, cause }));
    }

    /// Returns the results, or the error that ended the extraction; the error is `None` after cancellation.
    pub(super) fn into_summary(self) -> Result<ExtractSummary, Option<io::Error>> {
        if let Some(error) = self.fatal.into_inner() {
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
            hard_links_copied: self.hard_links_copied.into_inner(),
            bytes: self.bytes.into_inner(),
            failures: self.failures.into_inner(),
            owners_denied: self.owners_denied.into_inner(),
            devices_denied: self.devices_denied.into_inner(),
            modes_denied: self.modes_denied.into_inner(),
            times_denied: self.times_denied.into_inner(),
            xattrs_denied: self.xattrs_denied.into_inner(),
        })
    }
}

/// Whether this error of the target will occur for every further file.
fn is_fatal(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}
