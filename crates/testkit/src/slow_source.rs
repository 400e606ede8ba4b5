//! A slow source.

use std::{io, sync::Arc, thread, time::Duration};

use floe_image::ImageSource;

/// Delays every read; non-blocking reads never succeed.
pub struct SlowSource {
    inner: Arc<dyn ImageSource>,
    delay: Duration,
}

impl SlowSource {
    /// Wraps `inner` with `delay` before each read.
    pub fn new(inner: Arc<dyn ImageSource>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl ImageSource for SlowSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        thread::sleep(self.delay);
        self.inner.read_at(offset, output)
    }

    fn try_read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }
}
