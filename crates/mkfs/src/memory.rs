//! Fallible allocation of large buffers.

use crate::error::{Error, Result};

/// Extends `buffer` to at least `len` bytes.
pub(crate) fn lengthen(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    if let Some(missing) = len.checked_sub(buffer.len()) {
        buffer.try_reserve_exact(missing).map_err(|_| Error::Memory(len))?;
        buffer.resize(len, 0);
    }
    Ok(())
}

/// A copy of `bytes`.
pub(crate) fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = with_capacity(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// An empty buffer with room for `len` bytes.
pub(crate) fn with_capacity(len: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| Error::Memory(len))?;
    Ok(buffer)
}

/// `len` zeros.
pub(crate) fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    lengthen(&mut buffer, len)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocations_are_errors() {
        assert!(matches!(zeros(usize::MAX / 4), Err(Error::Memory(_))));
        assert!(zeros(3).is_ok_and(|buffer| buffer == [0; 3]));
        assert!(copied(b"abc").is_ok_and(|copy| copy == b"abc"));
    }
}
