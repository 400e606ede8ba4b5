//! Buffers of Python, written to without the interpreter's lock.

use pyo3::{PyResult, buffer::PyBuffer, exceptions::PyBufferError, prelude::*};

/// Gives `fill` the bytes of a buffer, without the interpreter's lock.
///
/// # Errors
/// The buffer is read-only or not contiguous.
pub(crate) fn fill<R: Send>(
    py: Python<'_>,
    buffer: &PyBuffer<u8>,
    fill: impl FnOnce(&mut [u8]) -> R + Send,
) -> PyResult<R> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("a writable, contiguous buffer is needed"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(fill(&mut []));
    }
    // SAFETY: the buffer is writable and contiguous, and stays where it is as long as `PyBuffer` holds it. Python
    // programs that write to it meanwhile, as with `readinto` of files, get either bytes; no reference of Rust to them
    // exists beside this one.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), len) };
    Ok(py.detach(|| fill(bytes)))
}
