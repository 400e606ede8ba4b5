//! What went wrong, in one line that says what to do about it.

use std::fmt;
use std::io;

/// What the lab's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure: what was being done, and the operating system's word on it if there is one.
#[derive(Debug)]
pub struct Error {
    message: String,
    cause: Option<io::Error>,
}

impl Error {
    /// A failure that is told by its message alone, such as a mistake in an option.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None }
    }

    /// The operating system refused while `doing` something.
    pub fn io(doing: impl Into<String>, cause: io::Error) -> Self {
        Self { message: doing.into(), cause: Some(cause) }
    }

    /// The operating system's error, if it was one.
    pub fn cause(&self) -> Option<&io::Error> {
        self.cause.as_ref()
    }

    /// Whether the system refused for lack of privileges.
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

/// Says what was being done when the operating system refused.
pub(crate) trait Doing<T> {
    /// Turns the system's error into ours, with `what` before it.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::io(what(), cause.into()))
    }
}
