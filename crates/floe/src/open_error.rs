//! Errors of opening an image.

use std::{fmt, io, path::PathBuf};

use crate::Likeness;
use floe_image::ShownName;

/// Why an image could not be opened. The text is one line that names the file and says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A file could not be opened or read.
    File {
        /// The file: the image or one of its extra devices.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A remote image could not be opened.
    Remote {
        /// The cause, which names the URL.
        error: io::Error,
    },
    /// There is neither an EROFS nor a SquashFS image at the requested place.
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// The offset in the file where an image was expected, in bytes; `None` after an unsuccessful search.
        offset: Option<u64>,
        /// The probable type of the file, if it was recognised.
        likeness: Option<Likeness>,
        /// The offset at which an image does begin, if it is known.
        found_at: Option<u64>,
    },
    /// The image is broken or uses unsupported features.
    Image {
        /// The file.
        path: PathBuf,
        /// The error of the format.
        error: floe_image::Error,
    },
    /// The file of an extra device cannot be used.
    Device {
        /// The image.
        image: PathBuf,
        /// The device's position in the image's device table; the first is 1.
        slot: u16,
        /// The file, with unprintable parts of its name replaced.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The image needs an extra device, but no file was given for it.
    MissingDevice {
        /// The image.
        path: PathBuf,
        /// The device's position in the image's device table; the first is 1.
        index: u16,
        /// The device's name in the image, with unprintable parts replaced; often empty.
        tag: String,
    },
    /// More extra devices were given than the image has.
    TooManyDevices {
        /// The image.
        path: PathBuf,
        /// The number of given devices.
        given_count: usize,
        /// The number of devices of the image.
        expected_count: usize,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(formatter, "{}: {error}", path.shown()),
            Self::Remote { error } => error.fmt(formatter),
            Self::NotAnImage { path, offset, likeness, found_at } => {
                write!(formatter, "{}: ", path.shown())?;
                match offset {
                    None => write!(formatter, "no EROFS or SquashFS image found in it")?,
                    Some(0) => write!(formatter, "not an EROFS or SquashFS image")?,
                    Some(offset) => write!(formatter, "no EROFS or SquashFS image at byte {offset}")?,
                }
                if let Some(likeness) = likeness {
                    write!(formatter, "; it looks like {}", likeness.name())?;
                }
                match (found_at, likeness.and_then(|likeness| likeness.advice())) {
                    (Some(at), _) => write!(formatter, "; one begins at byte {at}"),
                    (None, Some(advice)) => write!(formatter, ": {advice}"),
                    (None, None) => Ok(()),
                }
            }
            Self::Image { path, error } => write!(formatter, "{}: {error}", path.shown()),
            Self::Device { image, slot, path, error } => {
                write!(formatter, "{}: extra device {slot}, {}: {error}", image.shown(), path.shown())
            }
            Self::MissingDevice { path, index, tag } if tag.is_empty() => {
                write!(formatter, "{}: needs extra device {index}: give its file with --device", path.shown())
            }
            Self::MissingDevice { path, index, tag } => write!(
                formatter,
                "{}: needs extra device {index}, \"{tag}\": give its file with --device, or with --device-directory the \
                 directory in which it has that name",
                path.shown()
            ),
            Self::TooManyDevices { path, given_count, expected_count } => write!(
                formatter,
                "{}: {given_count} extra devices given, but the image has {expected_count}",
                path.shown()
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { error, .. } | Self::Device { error, .. } | Self::Remote { error } => Some(error),
            Self::Image { error, .. } => Some(error),
            _ => None,
        }
    }
}
