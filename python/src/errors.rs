//! Converts errors to Python exceptions.

use floe::{Error, OpenError, PathError};
use pyo3::{PyErr, create_exception, exceptions::PyOSError};

create_exception!(floe, FloeError, PyOSError, "The image is broken or uses unsupported features.");

/// Linux error numbers.
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ELOOP: i32 = 40;

/// An `OSError` with this number, by which Python chooses the subclass.
fn os_error(errno: i32, text: String) -> PyErr {
    PyOSError::new_err((errno, text))
}

/// Converts an error of the image.
pub(crate) fn of_image(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Io { error, .. } => os_error(error.raw_os_error().unwrap_or(EIO), text),
        Error::WrongType { expected: "a directory", .. } => os_error(ENOTDIR, text),
        Error::WrongType { .. } => os_error(EINVAL, text),
        Error::Corrupt { .. } | Error::Unsupported { .. } => FloeError::new_err(text),
        _ => os_error(EIO, text),
    }
}

/// Converts an error of a path lookup.
pub(crate) fn of_path(error: &PathError) -> PyErr {
    let text = error.to_string();
    match error {
        PathError::NotFound { .. } => os_error(ENOENT, text),
        PathError::NotADirectory { .. } => os_error(ENOTDIR, text),
        PathError::TooManyLinks { .. } => os_error(ELOOP, text),
        PathError::Image(error) => of_image(error),
        _ => os_error(EIO, text),
    }
}

/// Converts an error of opening an image.
pub(crate) fn of_open(error: &OpenError) -> PyErr {
    let text = error.to_string();
    match error {
        OpenError::File { error, .. } | OpenError::Device { error, .. } => {
            os_error(error.raw_os_error().unwrap_or(EIO), text)
        }
        _ => FloeError::new_err(text),
    }
}

/// The exception for opening a directory as a file.
pub(crate) fn is_a_directory(path: &str) -> PyErr {
    os_error(EISDIR, format!("{path}: is a directory"))
}
