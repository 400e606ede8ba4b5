//! What a task says when it fails.

use std::{fmt, io};

/// Why a task failed, for the person who called it.
pub(crate) struct Complaint(String);

/// What tasks return.
pub(crate) type Outcome<T = ()> = Result<T, Complaint>;

impl Complaint {
    /// A failure in these words.
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// One failure from many: nothing where there is none.
    pub(crate) fn from_lines(what: &str, lines: &[String]) -> Outcome {
        if lines.is_empty() { Ok(()) } else { Err(Self(format!("{what}:\n  {}", lines.join("\n  ")))) }
    }
}

/// `main` prints errors by their `Debug` form; this one is made to be read.
impl fmt::Debug for Complaint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<io::Error> for Complaint {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for Complaint {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Adds what was being done to an error.
pub(crate) trait During<T> {
    /// The error with `what` before it.
    fn during(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Complaint(format!("{what}: {error}")))
    }
}
