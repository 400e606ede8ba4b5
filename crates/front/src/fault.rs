//! Faults of the original: lasting ones are rendered, others fail the read.

use std::io::ErrorKind;

use floe_image::{Error, Place, Result};

/// The value of `answer`; `None` for a permanent error: the original breaks its format or is too short.
///
/// # Errors
/// The original cannot be read now.
pub(crate) fn lasting<T>(answer: Result<T>) -> Result<Option<T>> {
    let is_short = |error: &Error| matches!(error, Error::Io { error, .. } if error.kind() == ErrorKind::UnexpectedEof);
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_transient() && !is_short(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The error of a read at a place that has no readable block.
pub(crate) fn unreadable() -> Error {
    Error::corrupt("block of the virtual image is not readable", Place::UNKNOWN)
}
