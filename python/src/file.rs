//! The Python class `File`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use floe::{Image, Nid};
use pyo3::{buffer::PyBuffer, exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{buffer_sys, errors};

/// A file of an image, open for reading: an `io.RawIOBase` with positional reads that do not move the position.
#[pyclass(frozen, module = "floe")]
pub(crate) struct File {
    image: Image,
    nid: Nid,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    size: u64,
    position: AtomicU64,
    is_closed: AtomicBool,
}

impl File {
    pub(crate) fn new(image: Image, nid: Nid, name: String, size: u64) -> Self {
        Self { image, nid, name, size, position: AtomicU64::new(0), is_closed: AtomicBool::new(false) }
    }

    fn check_open(&self) -> PyResult<()> {
        if self.is_closed.load(Relaxed) { Err(PyValueError::new_err("I/O operation on closed file")) } else { Ok(()) }
    }
}

/// Up to this length, cached bytes are copied without releasing the interpreter lock: to take it again costs more than the copy,
/// and with many threads a switch to another one.
const COPY_LEN_MAX: usize = 64 << 10;

/// The bytes of a file from `offset` on: at most `len`, and fewer at the end of the file.
pub(crate) fn read_bytes<'py>(
    py: Python<'py>,
    image: &Image,
    nid: Nid,
    (offset, len): (u64, u64),
    size: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let len = len_within(size, offset, len)?;
    PyBytes::new_with(py, len, |output| {
        let read = match read_cached(image, nid, offset, output) {
            Some(read) => read,
            None => py.detach(|| image.read_at(nid, offset, output)).map_err(|error| errors::of_image(&error))?,
        };
        check_len(read, output.len())
    })
}

/// Copies a few bytes if they are cached.
fn read_cached(image: &Image, nid: Nid, offset: u64, output: &mut [u8]) -> Option<usize> {
    if output.len() <= COPY_LEN_MAX { image.read_cached(nid, offset, output) } else { None }
}

/// The number of bytes that `len` bytes from `offset` on have within a file.
pub(crate) fn len_within(size: u64, offset: u64, len: u64) -> PyResult<usize> {
    let len = len.min(size.saturating_sub(offset));
    usize::try_from(len).map_err(|_| PyValueError::new_err("too many bytes at once"))
}

/// Checks that a read returned all bytes that the file has by its size.
pub(crate) fn check_len(read: usize, wanted: usize) -> PyResult<()> {
    if read == wanted { Ok(()) } else { Err(PyValueError::new_err("the file is shorter than its size")) }
}

#[pymethods]
impl File {
    #[pyo3(signature = (size = -1, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_open()?;
        let position = self.position.load(Relaxed);
        let len = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let bytes = read_bytes(py, &self.image, self.nid, (position, len), self.size)?;
        self.position.store(position + bytes.as_bytes().len() as u64, Relaxed);
        Ok(bytes)
    }

    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, None)
    }

    fn readinto(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        let position = self.position.load(Relaxed);
        let len = self.pread_into(py, buffer, position)?;
        self.position.store(position + len as u64, Relaxed);
        Ok(len)
    }

    fn pread<'py>(&self, py: Python<'py>, length: u64, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.check_open()?;
        read_bytes(py, &self.image, self.nid, (offset, length), self.size)
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments of Python are extracted by value")]
    fn pread_into(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: u64) -> PyResult<usize> {
        self.check_open()?;
        let (image, nid) = (&self.image, self.nid);
        if let Some(read) = buffer_sys::fill(&buffer, |output| read_cached(image, nid, offset, output))? {
            return Ok(read);
        }
        let result = buffer_sys::fill(&buffer, |output| py.detach(|| image.read_at(nid, offset, output)))?;
        result.map_err(|error| errors::of_image(&error))
    }

    #[pyo3(signature = (offset, whence = 0, /))]
    fn seek(&self, offset: i64, whence: i32) -> PyResult<u64> {
        self.check_open()?;
        let base = match whence {
            0 => 0,
            1 => self.position.load(Relaxed),
            2 => self.size,
            _ => return Err(PyValueError::new_err(format!("invalid whence ({whence}, should be 0, 1 or 2)"))),
        };
        let position = base.checked_add_signed(offset);
        let position = position.ok_or_else(|| PyValueError::new_err(format!("negative seek position {offset}")))?;
        self.position.store(position, Relaxed);
        Ok(position)
    }

    fn tell(&self) -> PyResult<u64> {
        self.check_open()?;
        Ok(self.position.load(Relaxed))
    }

    fn readable(&self) -> bool {
        true
    }

    fn writable(&self) -> bool {
        false
    }

    fn seekable(&self) -> bool {
        true
    }

    fn flush(&self) {}

    fn isatty(&self) -> bool {
        false
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    #[getter]
    fn mode(&self) -> &'static str {
        "rb"
    }

    fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<floe.File name={:?} size={}>", self.name, self.size)
    }
}
