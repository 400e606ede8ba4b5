//! Options that every read consults.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use crate::{ReadaheadAlloc, SyncDecompress, VolumeOptions, memory::page_pool::Effort};

/// Options that every read consults, and that can change at any time.
#[derive(Debug)]
pub(crate) struct Switches {
    sync_decompress: AtomicU8,
    readahead_waits: AtomicBool,
}

impl Switches {
    pub(crate) fn new(options: &VolumeOptions) -> Self {
        let switches = Self { sync_decompress: AtomicU8::new(0), readahead_waits: AtomicBool::new(false) };
        switches.set(options);
        switches
    }

    /// Adopts all values from `options`.
    pub(crate) fn set(&self, options: &VolumeOptions) {
        let number = match options.sync_decompress {
            SyncDecompress::Auto => 0,
            SyncDecompress::Always => 1,
            SyncDecompress::Never => 2,
        };
        self.sync_decompress.store(number, Relaxed);
        self.readahead_waits.store(options.readahead_alloc == ReadaheadAlloc::Wait, Relaxed);
    }

    pub(crate) fn sync_decompress(&self) -> SyncDecompress {
        match self.sync_decompress.load(Relaxed) {
            0 => SyncDecompress::Auto,
            1 => SyncDecompress::Always,
            _ => SyncDecompress::Never,
        }
    }

    pub(crate) fn readahead_alloc(&self) -> ReadaheadAlloc {
        if self.readahead_waits.load(Relaxed) { ReadaheadAlloc::Wait } else { ReadaheadAlloc::BestEffort }
    }

    /// The effort with which readahead allocates pages.
    pub(crate) fn ahead_effort(&self) -> Effort {
        match self.readahead_alloc() {
            ReadaheadAlloc::BestEffort => Effort::BestEffort,
            ReadaheadAlloc::Wait => Effort::Demand,
        }
    }
}
