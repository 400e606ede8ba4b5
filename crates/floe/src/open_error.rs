//! Why an image could not be opened.

use std::{fmt, io, path::PathBuf};

use crate::Likeness;

/// Why an image could not be opened. Its text is one line that names the file and says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A file could not be opened or read.
    File {
        /// The file: the image or one of its extra devices.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// An image that is somewhere else could not be opened.
    Remote {
        /// Why; it names the URL.
        error: io::Error,
    },
    /// There is neither an EROFS nor a SquashFS image at the place that was asked for.
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// The byte of the file where an image was expected; `None` where it was looked for and not found.
        offset: Option<u64>,
        /// What is there instead, as far as it is known.
        likeness: Option<Likeness>,
        /// Where an image does begin, if it is known.
        found_at: Option<u64>,
    },
    /// The image is broken, or uses what this reader does not know.
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: floe_image::Error,
    },
    /// The file of an extra device cannot be used.
    Device {
        /// The image.
        image: PathBuf,
        /// The device's place in the table of the image; the first is 1.
        slot: u16,
        /// The file, as far as its name can be printed.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The image needs an extra device for which no file was given.
    MissingDevice {
        /// The image.
        path: PathBuf,
        /// The device's place in the table of the image; the first is 1.
        index: u16,
        /// The name that the image gives it, as far as it can be printed; often empty.
        tag: String,
    },
    /// More extra devices were given than the image names.
    TooManyDevices {
        /// The image.
        path: PathBuf,
        /// How many were given.
        given_count: usize,
        /// How many the image names.
        expected_count: usize,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(formatter, "{}: {error}", path.display()),
            Self::Remote { error } => error.fmt(formatter),
            Self::NotAnImage { path, offset, likeness, found_at } => {
                write!(formatter, "{}: ", path.display())?;
                match offset {
                    None => write!(formatter, "no EROFS or SquashFS image found in it")?,
                    Some(0) => write!(formatter, "not an EROFS or SquashFS image")?,
                    Some(offset) => write!(formatter, "no EROFS or SquashFS image at byte {offset}")?,
                }
                if let Some(likeness) = likeness {
                    write!(formatter, "; it looks like {}", likeness.name())?;
                }
                match (found_at, likeness.and_then(|likeness| likeness.advice())) {
                    (Some(0), _) => write!(formatter, "; one begins at byte 0: leave out --offset"),
                    (Some(at), _) => write!(formatter, "; one begins at byte {at}: give --offset {at}"),
                    (None, Some(advice)) => write!(formatter, ": {advice}"),
                    (None, None) => Ok(()),
                }
            }
            Self::Image { path, error } => write!(formatter, "{}: {error}", path.display()),
            Self::Device { image, slot, path, error } => {
                write!(formatter, "{}: extra device {slot}, {}: {error}", image.display(), path.display())
            }
            Self::MissingDevice { path, index, tag } if tag.is_empty() => {
                write!(formatter, "{}: needs extra device {index}: give its file with --device", path.display())
            }
            Self::MissingDevice { path, index, tag } => write!(
                formatter,
                "{}: needs extra device {index}, \"{tag}\": give its file with --device, or with --device-directory the \
                 directory in which it has that name",
                path.display()
            ),
            Self::TooManyDevices { path, given_count, expected_count } => write!(
                formatter,
                "{}: {given_count} extra devices given, but the image has {expected_count}",
                path.display()
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
