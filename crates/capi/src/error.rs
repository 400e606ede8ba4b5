//! Errors: a number for the caller, and a text for people.

use std::{cell::RefCell, ffi::CString, io};

use floe::{Error, OpenError, PathError};

thread_local! {
    /// What the last call of this thread that failed has to say.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs `read` with the text of the last error of this thread.
pub(crate) fn with_text<R>(read: impl FnOnce(&CString) -> R) -> R {
    TEXT.with_borrow(read)
}

/// An error on its way to C.
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    /// An error that is known by its number alone.
    pub(crate) fn of(errno: i32) -> Self {
        Self { errno, text: io::Error::from_raw_os_error(errno).to_string() }
    }

    /// Keeps the text for `floe_error_text`, and gives the number, negative.
    pub(crate) fn report(self) -> i32 {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        TEXT.set(text);
        -self.errno
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { errno: errno_of(&error), text: error.to_string() }
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        let errno = match &error {
            PathError::NotFound { .. } => libc::ENOENT,
            PathError::NotADirectory { .. } => libc::ENOTDIR,
            PathError::TooManyLinks { .. } => libc::ELOOP,
            PathError::Image(error) => errno_of(error),
            _ => libc::EIO,
        };
        Self { errno, text: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let errno = match &error {
            OpenError::File { error, .. } | OpenError::Device { error, .. } => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            OpenError::Image { error, .. } => errno_of(error),
            OpenError::MissingDevice { .. } | OpenError::TooManyDevices { .. } => libc::ENXIO,
            _ => libc::EINVAL,
        };
        Self { errno, text: error.to_string() }
    }
}

/// The number that the kernel's mount of the image would give.
fn errno_of(error: &Error) -> i32 {
    match error {
        Error::Io { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Corrupt { .. } => libc::EUCLEAN,
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::WrongType { expected: "a directory", .. } => libc::ENOTDIR,
        Error::WrongType { .. } => libc::EINVAL,
        Error::NoMemory => libc::ENOMEM,
        _ => libc::EIO,
    }
}
