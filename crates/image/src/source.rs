//! Sources of image bytes.

use std::io;

/// Random access to the bytes of an image or extra device. Callers assume that the bytes do not change while the source
/// is open.
pub trait ImageSource: Send + Sync {
    /// The length in bytes.
    fn len(&self) -> u64;

    /// Whether the source is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `output` with the bytes from `offset` on. May block.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::UnexpectedEof`] if the source ends before `output` is full.
    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()>;

    /// As [`ImageSource::read_at`], but without blocking: returns `false` if the bytes are not in memory. The contents
    /// of `output` are then unspecified.
    ///
    /// # Errors
    /// As for [`ImageSource::read_at`].
    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, output).map(|()| true)
    }

    /// Hints that the `len` bytes from `offset` on will be read soon. Never blocks or fails.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Hints that the `len` bytes from `offset` on are unlikely to be read again, so that a cache may drop them. Never
    /// fails.
    fn dont_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}
