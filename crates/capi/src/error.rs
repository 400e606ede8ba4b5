//! Errors: a number for the caller, and a text for users.

use std::{cell::RefCell, ffi::CString, io};

use floe::{Error, OpenError, PathError};

thread_local! {
    /// The text of this thread's last error.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Passes the text of this thread's last error to `read`.
pub(crate) fn with_text<R>(read: impl FnOnce(&CString) -> R) -> R {
    TEXT.with_borrow(read)
}

/// An error to be returned to C.
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    /// An error with a number but without its own text.
    pub(crate) fn of(errno: i32) -> Self {
        Self { errno, text: io::Error::from_raw_os_error(errno).to_string() }
    }

    /// Stores the text for `floe_error_text`, and returns the negative error number.
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
            OpenError::Remote { error } => remote_errno_of(error),
            OpenError::MissingDevice { .. } | OpenError::TooManyDevices { .. } => libc::ENXIO,
            _ => libc::EINVAL,
        };
        Self { errno, text: error.to_string() }
    }
}

/// The error number that the kernel's mount of the image would return.
fn errno_of(error: &Error) -> i32 {
    match error {
        Error::Io { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Corrupt { .. } => libc::EUCLEAN,
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::WrongType { expected: "a directory", .. } => libc::ENOTDIR,
        Error::WrongType { .. } => libc::EINVAL,
        Error::NoMemory => libc::ENOMEM,
        Error::Threads { .. } => libc::EAGAIN,
        _ => libc::EIO,
    }
}

/// The error number for an image that a server did not provide.
fn remote_errno_of(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    }
}
