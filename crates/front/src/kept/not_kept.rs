//! Why an image is not kept.

use std::{fmt, io};

use floe_image::Error;

/// The reason why an image is not kept. The file that was written is of no use.
#[derive(Debug)]
pub enum NotKept {
    /// A part of the original cannot be read or breaks its format: only rendering can show where.
    Broken,
    /// It would take more bytes than allowed.
    TooLarge,
    /// The pace ended the work.
    Ended,
    /// The original cannot be read now, or has no virtual image.
    Original(Error),
    /// The file cannot be written.
    File(io::Error),
}

impl fmt::Display for NotKept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => formatter.write_str("a part of the image is broken"),
            Self::TooLarge => formatter.write_str("its metadata is too large"),
            Self::Ended => formatter.write_str("the mount ended"),
            Self::Original(error) => error.fmt(formatter),
            Self::File(error) => error.fmt(formatter),
        }
    }
}

impl From<io::Error> for NotKept {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}
