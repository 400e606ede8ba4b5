//! Memory beside the output that a decode needs for a while.

use floe_image::DecodeError;

/// Memory that is made once, grows to what decodes need, and is used again by each.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    /// What the decode that runs or ran last took at most, in bytes.
    used_last: usize,
    /// What any decode took, in bytes.
    used_max: usize,
}

impl Scratch {
    /// Begins the count of another decode.
    pub(crate) fn begin(&mut self) {
        self.used_last = 0;
    }

    /// `len` bytes of any content.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn take(&mut self, len: usize) -> Result<&mut [u8], DecodeError> {
        if let Some(more) = len.checked_sub(self.bytes.len()) {
            self.bytes.try_reserve_exact(more).map_err(|_| DecodeError::NoMemory)?;
            self.bytes.resize(len, 0);
        }
        self.used_last = self.used_last.max(len);
        self.used_max = self.used_max.max(len);
        Ok(&mut self.bytes[..len])
    }

    /// How many bytes there are.
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
