//! A source whose non-blocking reads succeed half of the time.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::ImageSource;

/// Every other non-blocking read succeeds.
pub struct HalfCachedSource {
    inner: Arc<dyn ImageSource>,
    ask_count: AtomicU64,
}

impl HalfCachedSource {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ImageSource>) -> Self {
        Self { inner, ask_count: AtomicU64::new(0) }
    }
}

impl ImageSource for HalfCachedSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, output)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        let is_cached = self.ask_count.fetch_add(1, Relaxed).is_multiple_of(2);
        if is_cached { self.inner.read_at(offset, output).map(|()| true) } else { Ok(false) }
    }
}
