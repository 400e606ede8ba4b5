//! Why an image was not built.

use std::{fmt, io, path::PathBuf};

use floe_codec::encode::EncodeError;

/// Why an image was not built. No image is left under the final name then.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Something of a source could not be read.
    Source {
        /// Its path.
        path: PathBuf,
        /// What was tried, as in "cannot … PATH": "open".
        action: &'static str,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file changed between being listed and having been read.
    Changed {
        /// Its path.
        path: PathBuf,
    },
    /// Something of a source cannot be in an image.
    Unfit {
        /// Its path.
        path: PathBuf,
        /// Why: "its name is longer than 255 bytes".
        reason: String,
    },
    /// The image could not be written.
    Output {
        /// Its path.
        path: PathBuf,
        /// What was tried: "write".
        action: &'static str,
        /// What the operating system said.
        error: io::Error,
    },
    /// The options contradict each other or are out of range.
    Option(String),
    /// No thread could be started.
    Thread(io::Error),
    /// There is no memory for a buffer of this many bytes.
    Memory(usize),
    /// A codec failed.
    Encode(EncodeError),
    /// The image would need what its layout cannot say.
    Layout(String),
    /// The image was read back and is not what it should be: where, and in what.
    Verify(String),
    /// The image could not be read back: why.
    Unverified(String),
    /// [`Progress`](crate::Progress) asked to stop.
    Cancelled,
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
            Self::Source { path, action, error } => write!(formatter, "cannot {action} {}: {error}", path.display()),
            Self::Changed { path } => {
                write!(formatter, "{} changed while it was read; try again when nothing writes to it", path.display())
            }
            Self::Unfit { path, reason } => write!(formatter, "{}: {reason}", path.display()),
            Self::Output { path, action, error } => {
                write!(formatter, "cannot {action} the image {}: {error}", path.display())
            }
            Self::Option(reason) | Self::Layout(reason) => formatter.write_str(reason),
            Self::Thread(error) => write!(formatter, "cannot start a thread: {error}"),
            Self::Memory(len) => write!(
                formatter,
                "there is no memory for {len} bytes: raise the limit, or use fewer threads (--jobs 1)"
            ),
            Self::Encode(error) => error.fmt(formatter),
            Self::Verify(fault) => write!(
                formatter,
                "the image does not read back as what it was made of, so it was not kept: {fault}; please report this"
            ),
            Self::Unverified(reason) => {
                write!(formatter, "the image could not be read back, so it was not kept: {reason}")
            }
            Self::Cancelled => formatter.write_str("stopped before the image was whole"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source { error, .. } | Self::Output { error, .. } | Self::Thread(error) => Some(error),
            Self::Encode(error) => Some(error),
            _ => None,
        }
    }
}
