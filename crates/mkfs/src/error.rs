//! Errors of building an image.

use std::{fmt, io, path::PathBuf};

use floe_codec::encode::EncodeError;
use floe_image::{Shown, ShownName};

/// The reason for which an image was not built. The output path then has no new image.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A source could not be read.
    Source {
        /// Its path.
        path: PathBuf,
        /// The failed action, as in "cannot … PATH": "open".
        action: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file changed after it was listed.
    Changed {
        /// Its path.
        path: PathBuf,
    },
    /// A source cannot be represented in an image.
    Unfit {
        /// Its path.
        path: PathBuf,
        /// The reason: "its name is longer than 255 bytes".
        reason: String,
    },
    /// The image could not be written.
    Output {
        /// Its path.
        path: PathBuf,
        /// The failed action: "write".
        action: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// An existing file that cannot be replaced was to be overwritten with the complete image, and has only a part of it.
    Incomplete {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file beside the image could not be written, removed or named.
    Companion {
        /// Its path.
        path: PathBuf,
        /// The failed action: "write".
        action: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The options contradict each other or are out of range.
    Option(String),
    /// A thread could not be started.
    Thread(io::Error),
    /// Memory for a buffer of this many bytes is not available.
    Memory(usize),
    /// A codec failed.
    Encode(EncodeError),
    /// The image exceeds a limit of its layout.
    Layout(String),
    /// Verification found a difference, which the text describes with its place.
    Verify(String),
    /// Verification could not read the image; the text states the reason.
    Unverified(String),
    /// [`Progress`](crate::Progress) asked to stop.
    Cancelled,
}

/// How many bytes of a name an error message shows.
const SHOWN_BYTES_MAX: usize = 200;

/// A name from a source for an error message: in one line, and shortened.
pub(crate) fn shown(name: &[u8]) -> String {
    if name.len() <= SHOWN_BYTES_MAX {
        return Shown(name).to_string();
    }
    let is_inside = |at: usize| name.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = (SHOWN_BYTES_MAX - 3..=SHOWN_BYTES_MAX).rev().find(|at| !is_inside(*at)).unwrap_or(SHOWN_BYTES_MAX);
    format!("{}…", Shown(name.get(..end).unwrap_or(name)))
}

/// A result whose error is [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn source(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Source { path, action, error }
    }

    pub(crate) fn unfit(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Unfit { path: path.into(), reason: reason.into() }
    }
}

impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::Setting(range) => Self::Option(range.to_owned()),
            other => Self::Encode(other),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { path, action, error } | Self::Companion { path, action, error } => {
                write!(formatter, "cannot {action} {}: {error}", path.shown())
            }
            Self::Incomplete { path, error } => {
                write!(formatter, "{} has no image any more: overwriting it failed: {error}", path.shown())
            }
            Self::Changed { path } => {
                write!(formatter, "{} changed while it was read; try again when no program writes to it", path.shown())
            }
            Self::Unfit { path, reason } => write!(formatter, "{}: {reason}", path.shown()),
            Self::Output { path, action, error } => {
                write!(formatter, "cannot {action} the image {}: {error}", path.shown())
            }
            Self::Option(reason) | Self::Layout(reason) => formatter.write_str(reason),
            Self::Thread(error) => write!(formatter, "cannot start a thread: {error}"),
            Self::Memory(len) => {
                write!(formatter, "out of memory ({len} bytes): raise the limit, or use fewer threads (--jobs 1)")
            }
            Self::Encode(error) => error.fmt(formatter),
            Self::Verify(fault) => {
                write!(formatter, "verification failed and the image was discarded: {fault}; please report this bug")
            }
            Self::Unverified(reason) => {
                write!(formatter, "the image could not be verified and was discarded: {reason}")
            }
            Self::Cancelled => formatter.write_str("cancelled before the image was complete"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source { error, .. }
            | Self::Output { error, .. }
            | Self::Incomplete { error, .. }
            | Self::Companion { error, .. }
            | Self::Thread(error) => Some(error),
            Self::Encode(error) => Some(error),
            _ => None,
        }
    }
}
