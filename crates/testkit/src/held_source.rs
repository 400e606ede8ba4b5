//! A source that stops answering.

use std::{io, sync::Arc, time::Duration};

use floe_image::ImageSource;
use floe_sync::{Condvar, Mutex, MutexGuard};

/// A source whose reads wait while it is held; non-blocking reads never succeed.
///
/// A read that has waited for a minute releases all reads, so a test that waits for a read fails instead of hanging.
pub struct HeldSource {
    inner: Arc<dyn ImageSource>,
    is_held: Mutex<bool>,
    released: Condvar,
}

/// The longest time that a read waits.
const HELD_MAX: Duration = Duration::from_secs(60);

impl HeldSource {
    /// Wraps `inner`; nothing is held yet.
    pub fn new(inner: Arc<dyn ImageSource>) -> Self {
        Self { inner, is_held: Mutex::new(false), released: Condvar::new() }
    }

    /// Makes all reads from now on wait.
    pub fn hold(&self) {
        *self.lock() = true;
    }

    /// Releases all reads that wait.
    pub fn release(&self) {
        *self.lock() = false;
        self.released.notify_all();
    }

    /// Whether reads wait. The source may have released them itself, after `HELD_MAX`.
    pub fn is_held(&self) -> bool {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_held.lock()
    }
}

impl ImageSource for HeldSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let waited = self.released.wait_timeout_while(self.lock(), HELD_MAX, |is_held| *is_held);
        let (is_held, _) = waited;
        let has_lapsed = *is_held;
        drop(is_held);
        if has_lapsed {
            self.release();
        }
        self.inner.read_at(offset, output)
    }

    fn try_read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }
}
