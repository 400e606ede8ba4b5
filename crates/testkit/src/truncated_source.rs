//! A source that turned out shorter than it said.

use std::{io, sync::Arc};

use floe_image::ImageSource;

/// A source that still says its old length, but whose bytes from some point on are gone: a file truncated while open.
pub struct TruncatedSource {
    inner: Arc<dyn ImageSource>,
    kept_len: u64,
}

impl TruncatedSource {
    /// `inner` of which only the first `kept_len` bytes can be read.
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
