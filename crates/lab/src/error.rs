//! The lab's errors: one line each, with advice for the user.

use std::fmt;
use std::io;

/// The result type of the lab's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure: the failed action, and the error of the operating system if there is one.
#[derive(Debug)]
pub struct Error {
    message: String,
    cause: Option<io::Error>,
}

impl Error {
    /// A failure with only a message, such as a wrong option.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None }
    }

    /// A failure of the operating system during an action.
    pub fn io(context: impl Into<String>, cause: io::Error) -> Self {
        Self { message: context.into(), cause: Some(cause) }
    }

    /// The error of the operating system, if there is one.
    pub fn cause(&self) -> Option<&io::Error> {
        self.cause.as_ref()
    }

    /// Whether privileges were missing.
    pub fn is_permission(&self) -> bool {
        self.cause.as_ref().is_some_and(|cause| {
            cause.kind() == io::ErrorKind::PermissionDenied || cause.raw_os_error() == Some(libc::EPERM)
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            None => out.write_str(&self.message),
            Some(cause) => write!(out, "{}: {cause}", self.message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

/// Adds the failed action to an error of the operating system.
pub(crate) trait ErrorContext<T> {
    /// Converts the error, with `what` before it.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::io(what(), cause.into()))
    }
}
