//! What LZ4 blocks need beside their output while they are decoded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_image::Encoding;

use crate::PAGE_BYTES;

/// Counts the pages that decodes of LZ4 blocks need beside their output: those of a window, where a part of a block is
/// wanted that has no place in the cache. The image says how large its windows are.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    decodes: AtomicU64,
    pages: AtomicU64,
    pages_max: AtomicU64,
    window_bytes_max: AtomicU64,
}

/// What LZ4 blocks needed beside their output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowCounters {
    /// LZ4 blocks decoded.
    pub decodes: u64,
    /// Pages that they needed, one after the other.
    pub pages: u64,
    /// The most pages that one of them needed.
    pub pages_max: u64,
    /// The largest window of those blocks, in bytes.
    pub window_bytes_max: u64,
}

impl Windows {
    pub(crate) fn note(&self, encoding: &Encoding, temporary_bytes: usize) {
        let Encoding::Lz4 { window_bytes, .. } = *encoding else { return };
        self.decodes.fetch_add(1, Relaxed);
        let pages = temporary_bytes.div_ceil(PAGE_BYTES) as u64;
        for (most, now) in [(&self.pages_max, pages), (&self.window_bytes_max, u64::from(window_bytes))] {
            // The most seldom changes, so it is mostly read alone.
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
