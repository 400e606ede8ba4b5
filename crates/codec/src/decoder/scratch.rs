//! Temporary memory of a decode.

use floe_image::DecodeError;

/// Temporary memory that grows to the largest decode and is reused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    /// The largest use of the current or last decode, in bytes.
    used_last: usize,
    /// The largest use of any decode, in bytes.
    used_max: usize,
}

impl Scratch {
    /// Starts the count of another decode.
    pub(crate) fn begin(&mut self) {
        self.used_last = 0;
    }

    /// `len` bytes with unspecified content.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn take(&mut self, len: usize) -> Result<&mut [u8], DecodeError> {
        if let Some(more) = len.checked_sub(self.bytes.len()) {
            self.bytes.try_reserve_exact(more).map_err(|_| DecodeError::NoMemory)?;
            self.bytes.resize(len, 0);
        }
        self.used_last = self.used_last.max(len);
        self.used_max = self.used_max.max(len);
        Ok(&mut self.bytes[..len])
    }

    /// The size of the memory in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn used_last(&self) -> usize {
        self.used_last
    }

    pub(crate) fn used_max(&self) -> usize {
        self.used_max
    }
}
