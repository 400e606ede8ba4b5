//! A source with injected read errors.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use floe_image::ImageSource;

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
