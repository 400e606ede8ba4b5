//! Errors of conversions.

use std::{fmt, io, path::Path};

use floe_image::ShownName;

/// Why an image could not be converted.
#[derive(Debug)]
pub enum Error {
    /// The request makes no sense.
    Usage(String),
    /// Source or target cannot be used, or the source violates its format.
    Failed(String),
    /// A layer could not be built.
    Build {
        /// The digest of the layer.
        layer: String,
        /// The reason.
        error: floe_mkfs::Error,
    },
    /// The caller asked to stop.
    Cancelled,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure with this message.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// A failure to use the file at `path`.
    pub(crate) fn file(path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::Failed(format!("{}: {error}", path.shown()))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) => formatter.write_str(message),
            Self::Build { layer, error } => write!(formatter, "layer {layer}: {error}"),
            Self::Cancelled => formatter.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
