//! Reads an image from a file-like Python object.

use std::{
    io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use floe::ImageSource;
use pyo3::{prelude::*, types::PyBytes};

/// A Python object with `seek` and `read`. Its position is shared, so only one thread reads at a time; an object with
/// `pread(length, offset)` permits parallel reads.
pub(crate) struct PythonSource {
    object: Py<PyAny>,
    name: String,
    len: u64,
    has_pread: bool,
    turn: Mutex<()>,
}

impl PythonSource {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let len = object.call_method1("seek", (0, 2))?.extract()?;
        let name = object.getattr("name").and_then(|name| name.extract()).unwrap_or_else(|_| "the image".to_owned());
        let has_pread = object.hasattr("pread")?;
        Ok(Self { object: object.clone().unbind(), name, len, has_pread, turn: Mutex::new(()) })
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> PathBuf {
        self.name.clone().into()
    }

    fn read(&self, py: Python<'_>, offset: u64, output: &mut [u8]) -> PyResult<usize> {
        let object = self.object.bind(py);
        let bytes = if self.has_pread {
            object.call_method1("pread", (output.len(), offset))?
        } else {
            object.call_method1("seek", (offset,))?;
            object.call_method1("read", (output.len(),))?
        };
        let bytes = bytes.cast::<PyBytes>()?.as_bytes();
        let len = bytes.len().min(output.len());
        output[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }
}

impl ImageSource for PythonSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        // This lock comes before the interpreter lock, because the thread that holds it may have to wait for the
        // interpreter lock.
        let _turn = (!self.has_pread).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut done = 0;
        while done < output.len() {
            let read = Python::attach(|py| self.read(py, offset + done as u64, &mut output[done..]));
            match read.map_err(|error| io::Error::other(error.to_string()))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => done += len,
            }
        }
        Ok(())
    }

    fn try_read_at(&self, _: u64, _: &mut [u8]) -> io::Result<bool> {
        // Reads call Python, which may block.
        Ok(false)
    }
}
