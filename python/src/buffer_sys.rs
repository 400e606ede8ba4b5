//! Writes to Python buffers.

use pyo3::{PyResult, buffer::PyBuffer, exceptions::PyBufferError};

/// Passes the bytes of a buffer to `fill`, which may release the interpreter lock.
///
/// # Errors
/// The buffer is read-only or not contiguous.
pub(crate) fn fill<R>(buffer: &PyBuffer<u8>, fill: impl FnOnce(&mut [u8]) -> R) -> PyResult<R> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("a writable, contiguous buffer is needed"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(fill(&mut []));
    }
    // SAFETY: the buffer is writable and contiguous, and does not move while `PyBuffer` holds it. A Python program that
    // writes to it at the same time, as is possible with `readinto` of files, gets either program's bytes; Rust has no
    // other reference to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), len) };
    Ok(fill(bytes))
}
