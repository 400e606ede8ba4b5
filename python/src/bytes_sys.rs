//! Fills new `bytes` objects without the interpreter lock.

use pyo3::{ffi, prelude::*, types::PyBytes};

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
