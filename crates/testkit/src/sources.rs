//! Sources of image bytes for tests: in memory, counting, failing, without an answer, slow, too short.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{self, Relaxed},
        },
    },
    thread,
    time::Duration,
};

use floe_image::ImageSource;
use floe_sync::{Condvar, Mutex, MutexGuard};

/// An image in memory.
#[derive(Clone, Debug, Default)]
pub struct MemorySource {
    bytes: Vec<u8>,
}

impl MemorySource {
    /// An image of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into() }
    }
}

impl ImageSource for MemorySource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= self.bytes.len());
        let bytes = start.and_then(|start| self.bytes[start..].get(..output.len()));
        output.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

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

    fn reads_around(&self) -> bool {
        self.inner.reads_around()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }
}

/// The reads that fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The reads with these numbers, counted from 0.
    Reads(Range<u64>),
    /// Every n-th read, starting with the first.
    EveryNth(u64),
    /// All reads that overlap these bytes of the source.
    Bytes(Range<u64>),
    /// The first reads that overlap these bytes of the source, as many as the number states; later ones succeed.
    BytesFor(Range<u64>, u64),
}

/// Fails the reads of another source that match a [`Fault`], with `EIO` or another error.
pub struct FailingSource {
    inner: Arc<dyn ImageSource>,
    fault: Fault,
    error: fn() -> io::Error,
    read_count: AtomicU64,
    failure_count: AtomicU64,
}

impl FailingSource {
    /// Wraps `inner` with a fault.
    pub fn new(inner: Arc<dyn ImageSource>, fault: Fault) -> Self {
        Self::with_error(inner, fault, || io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
    }

    /// Wraps `inner` with a fault and the error that it causes.
    pub fn with_error(inner: Arc<dyn ImageSource>, fault: Fault, error: fn() -> io::Error) -> Self {
        Self { inner, fault, error, read_count: AtomicU64::new(0), failure_count: AtomicU64::new(0) }
    }

    /// The number of reads.
    pub fn read_count(&self) -> u64 {
        self.read_count.load(Ordering::Relaxed)
    }

    /// The number of failed reads.
    pub fn failure_count(&self) -> u64 {
        self.failure_count.load(Ordering::Relaxed)
    }

    fn fails(&self, offset: u64, len: u64) -> bool {
        let number = self.read_count.fetch_add(1, Ordering::Relaxed);
        let touches = |bytes: &Range<u64>| offset < bytes.end && bytes.start < offset + len;
        match &self.fault {
            Fault::Reads(numbers) => numbers.contains(&number),
            Fault::EveryNth(n) => number.is_multiple_of(*n),
            Fault::Bytes(bytes) => touches(bytes),
            Fault::BytesFor(bytes, count) => {
                let left = |failures: u64| (failures < *count).then_some(failures + 1);
                let relaxed = Ordering::Relaxed;
                return touches(bytes) && self.failure_count.fetch_update(relaxed, relaxed, left).is_ok();
            }
        }
        .then(|| self.failure_count.fetch_add(1, Ordering::Relaxed))
        .is_some()
    }
}

impl ImageSource for FailingSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        if self.fails(offset, output.len() as u64) {
            return Err((self.error)());
        }
        self.inner.read_at(offset, output)
    }
}

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

/// Reports its full length although only a prefix is readable, like a file truncated while open.
pub struct TruncatedSource {
    inner: Arc<dyn ImageSource>,
    kept_len: u64,
}

impl TruncatedSource {
    /// Wraps `inner`; only the first `kept_len` bytes are readable.
    pub fn new(inner: Arc<dyn ImageSource>, kept_len: u64) -> Self {
        Self { inner, kept_len }
    }
}

impl ImageSource for TruncatedSource {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(output.len() as u64) {
            Some(end) if end <= self.kept_len => self.inner.read_at(offset, output),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySource;

    #[test]
    fn faults_hit_the_reads_they_name() {
        for (fault, expected) in [
            (Fault::Reads(1..3), [true, false, false, true]),
            (Fault::EveryNth(2), [false, true, false, true]),
            (Fault::Bytes(15..25), [true, false, false, true]),
            (Fault::BytesFor(0..40, 1), [false, true, true, true]),
        ] {
            let source = FailingSource::new(Arc::new(MemorySource::new(vec![0; 40])), fault.clone());
            let outcome = [0, 10, 20, 30].map(|offset| source.read_at(offset, &mut [0; 10]).is_ok());
            assert_eq!(outcome, expected, "{fault:?}");
            assert_eq!(source.failure_count(), expected.iter().filter(|ok| !**ok).count() as u64);
        }
    }
}
