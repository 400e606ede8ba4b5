//! A source that counts reads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use floe_image::ImageSource;

/// Counts the reads of another source and their bytes.
pub struct CountingSource {
    inner: Arc<dyn ImageSource>,
    read_count: AtomicU64,
    read_bytes: AtomicU64,
}

impl CountingSource {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ImageSource>) -> Self {
        Self { inner, read_count: AtomicU64::new(0), read_bytes: AtomicU64::new(0) }
    }

    /// The number of reads.
    pub fn read_count(&self) -> u64 {
        self.read_count.load(Ordering::Relaxed)
    }

    /// The number of bytes requested.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    fn count(&self, len: usize) {
        self.read_count.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

impl ImageSource for CountingSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.count(output.len());
        self.inner.read_at(offset, output)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        let is_read = self.inner.try_read_at(offset, output)?;
        if is_read {
            self.count(output.len());
        }
        Ok(is_read)
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }
}
