//! Errors of tasks.

use std::{fmt, io};

/// Why a task failed, for the user.
pub(crate) struct TaskError(String);

/// The result of a task.
pub(crate) type Outcome<T = ()> = Result<T, TaskError>;

impl TaskError {
    /// Creates an error with this message.
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// Combines several failures into one error; succeeds if there are none.
    pub(crate) fn from_lines(what: &str, lines: &[String]) -> Outcome {
        if lines.is_empty() { Ok(()) } else { Err(Self(format!("{what}:\n  {}", lines.join("\n  ")))) }
    }
}

/// `main` prints errors in their `Debug` form, so this one is readable.
impl fmt::Debug for TaskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<io::Error> for TaskError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for TaskError {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Adds the failed action to an error.
pub(crate) trait During<T> {
    /// Prefixes the error with `what`.
    fn during(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| TaskError(format!("{what}: {error}")))
    }
}
