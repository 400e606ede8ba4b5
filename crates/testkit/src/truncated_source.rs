//! A source that is shorter than it reports.

use std::{io, sync::Arc};

use floe_image::ImageSource;

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
