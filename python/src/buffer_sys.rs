//! Writes to Python buffers, and fills new `bytes` objects without the interpreter lock.

use pyo3::{PyResult, buffer::PyBuffer, exceptions::PyBufferError, ffi, prelude::*, types::PyBytes};

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

/// Creates an object for each length, and passes their contents to `fill`, without the interpreter lock.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn new_filled<'py, R: Send>(
    py: Python<'py>,
    lens: impl Iterator<Item = usize>,
    fill: impl FnOnce(Vec<&mut [u8]>) -> R + Send,
) -> PyResult<(Vec<Bound<'py, PyBytes>>, R)> {
    let mut objects: Vec<_> = lens.map(|len| PyBytes::new_with(py, len, |_| Ok(()))).collect::<PyResult<_>>()?;
    let contents = objects.iter_mut().map(contents).collect();
    let result = py.detach(|| fill(contents));
    Ok((objects, result))
}

/// The bytes of an object that has just been created by `PyBytes::new_with`.
fn contents<'a>(object: &'a mut Bound<'_, PyBytes>) -> &'a mut [u8] {
    let len = object.as_bytes().len();
    if len == 0 {
        // Python shares one empty object.
        return &mut [];
    }
    // SAFETY: `PyBytes::new_with` gives the object `len` initialised bytes. The object is new and not the shared empty one, and
    // Python's cycle collector does not track `bytes`, so nothing but `new_filled` has a reference to it. The bytes do
    // not move, and `new_filled` returns the object only after `fill` has returned.
    unsafe { std::slice::from_raw_parts_mut(ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>(), len) }
}
