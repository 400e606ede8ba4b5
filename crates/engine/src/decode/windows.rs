//! Counts the window memory of LZ4 decodes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_image::{Encoding, metrics};

use crate::PAGE_BYTES;

/// Counts the pages that LZ4 decodes need besides their output: the window, needed when only part of a block is wanted
/// and the block has no place in the cache. The image declares the size of its windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    decodes: AtomicU64,
    pages: AtomicU64,
    pages_max: AtomicU64,
    window_bytes_max: AtomicU64,
}

metrics! {
    /// Memory that LZ4 decodes needed besides their output.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WindowCounters {
        /// LZ4 blocks decoded.
        pub decodes: u64 = Counter,
        /// Pages needed by all decodes in total.
        pub pages: u64 = Counter as temporary_pages,
        /// The most pages that a single decode needed.
        pub pages_max: u64 = Gauge as temporary_pages_max,
        /// The largest window that a decoded block declared, in bytes.
        pub window_bytes_max: u64 = Gauge,
    }
}

impl Windows {
    pub(crate) fn note(&self, encoding: &Encoding, temporary_bytes: usize) {
        let Encoding::Lz4 { window_bytes, .. } = *encoding else { return };
        self.decodes.fetch_add(1, Relaxed);
        let pages = temporary_bytes.div_ceil(PAGE_BYTES) as u64;
        for (most, now) in [(&self.pages_max, pages), (&self.window_bytes_max, u64::from(window_bytes))] {
            // A maximum rarely changes, so a plain load comes first.
            if now > most.load(Relaxed) {
                most.fetch_max(now, Relaxed);
            }
        }
        if pages > 0 {
            self.pages.fetch_add(pages, Relaxed);
        }
    }

    pub(crate) fn counters(&self) -> WindowCounters {
        WindowCounters {
            decodes: self.decodes.load(Relaxed),
            pages: self.pages.load(Relaxed),
            pages_max: self.pages_max.load(Relaxed),
            window_bytes_max: self.window_bytes_max.load(Relaxed),
        }
    }
}
