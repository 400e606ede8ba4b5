//! Where image bytes come from.

use std::io;

/// Random access to the bytes of one image or extra device. Its bytes are taken not to change while it is open.
pub trait ImageSource: Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `output` with the bytes from `offset` on. May wait.
    ///
    /// # Errors
    /// What the operating system says; [`io::ErrorKind::UnexpectedEof`] where the source ends before `output` is full.
    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()>;

    /// As [`ImageSource::read_at`], but only if no waiting is needed: `false` says that the bytes are not at hand, and
    /// `output` then holds anything.
    ///
    /// # Errors
    /// As [`ImageSource::read_at`].
    fn read_at_hand(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, output).map(|()| true)
    }

    /// Says that the `len` bytes from `offset` on will be read soon. A hint: it does not wait and cannot fail.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Says that the `len` bytes from `offset` on will hardly be read again, so that whoever keeps them in memory may
    /// let them go. A hint: it cannot fail.
    fn done_with(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}
