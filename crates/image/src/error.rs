//! Errors of reading an image, and of starting threads and processes.

use std::{borrow::Cow, fmt, io, sync::Arc};

use crate::{DeviceId, Nid};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which an image could not be read. Cheap to clone, because several waiting threads may receive the
/// same error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Reading the source failed.
    Io {
        /// The location in the source.
        place: Place,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// The image breaks a rule of its format.
    Corrupt {
        /// The violated rule, as a short phrase that describes the fault: "dirent name past block".
        rule: &'static str,
        /// The location of the violation.
        place: Place,
    },
    /// The image uses a feature that Floe does not support.
    Unsupported {
        /// The name of the feature.
        feature: Cow<'static, str>,
    },
    /// The inode is not of the type that the operation needs.
    WrongType {
        /// The type it needs, with its article: "a directory".
        expected: &'static str,
        /// The inode.
        nid: Nid,
    },
    /// The memory budget is exhausted, and the operation may not wait.
    NoMemory,
    /// No thread can be started.
    Threads {
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// The bytes are not in memory, and the operation may not wait for them.
    WouldBlock,
    /// The reader was closed or dropped before the operation finished.
    Cancelled,
}

/// The location of a fault, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The inode.
    pub nid: Option<Nid>,
    /// The source, if it is not the image itself.
    pub device: DeviceId,
    /// The byte offset in that source, or in decoded metadata if the rule concerns decoded metadata.
    pub offset: Option<u64>,
}

impl Place {
    /// An unknown location.
    pub const UNKNOWN: Self = Self { nid: None, device: DeviceId(0), offset: None };

    /// An offset in the image.
    pub const fn at(offset: u64) -> Self {
        Self { nid: None, device: DeviceId(0), offset: Some(offset) }
    }

    /// An inode.
    pub const fn inode(nid: Nid) -> Self {
        Self { nid: Some(nid), device: DeviceId(0), offset: None }
    }

    /// An offset in the image, read on behalf of an inode.
    pub const fn inode_at(nid: Nid, offset: u64) -> Self {
        Self { nid: Some(nid), device: DeviceId(0), offset: Some(offset) }
    }
}

impl Error {
    /// A violation of `rule` at `place`.
    pub const fn corrupt(rule: &'static str, place: Place) -> Self {
        Self::Corrupt { rule, place }
    }

    /// An unsupported feature.
    pub fn unsupported(feature: impl Into<Cow<'static, str>>) -> Self {
        Self::Unsupported { feature: feature.into() }
    }

    /// An error of the operating system while reading at `offset` of `device`.
    pub fn io(device: DeviceId, offset: u64, error: io::Error) -> Self {
        Self::Io { place: Place { nid: None, device, offset: Some(offset) }, error: Arc::new(error) }
    }

    /// Adds the inode to an error that does not name one yet.
    pub fn for_inode(mut self, nid: Nid) -> Self {
        if let Self::Io { place, .. } | Self::Corrupt { place, .. } = &mut self {
            place.nid.get_or_insert(nid);
        }
        self
    }

    /// Whether a retry may succeed: the source or the machine failed, and the image is not at fault.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::NoMemory | Self::Threads { .. } | Self::WouldBlock | Self::Cancelled)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { place, error } => write!(formatter, "cannot read the image{place}: {error}"),
            Self::Corrupt { rule, place } => write!(formatter, "corrupt image: {rule}{place}"),
            Self::Unsupported { feature } => write!(formatter, "not supported: {feature}"),
            Self::WrongType { expected, nid } => write!(formatter, "inode {nid} is not {expected}"),
            Self::NoMemory => formatter.write_str("the memory budget is exhausted"),
            Self::Threads { error } => write!(formatter, "cannot start a thread: {error}"),
            Self::WouldBlock => formatter.write_str("the bytes are not in memory"),
            Self::Cancelled => formatter.write_str("cancelled"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } | Self::Threads { error } => Some(error.as_ref()),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = " (";
        if let Some(nid) = self.nid {
            write!(formatter, "{separator}inode {nid}")?;
            separator = ", ";
        }
        if self.device != DeviceId(0) {
            write!(formatter, "{separator}device {}", self.device.0)?;
            separator = ", ";
        }
        if let Some(offset) = self.offset {
            write!(formatter, "{separator}byte {offset}")?;
            separator = ", ";
        }
        if separator == ", " { formatter.write_str(")") } else { Ok(()) }
    }
}

/// An error of starting a thread or a process, with the limits that the error number EAGAIN is about. Its own text is
/// "Resource temporarily unavailable".
pub fn start_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::WouldBlock,
            "too many threads and processes (ulimit -u), or too little memory (ulimit -v)",
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_rule_and_the_place() {
        for (error, expected) in [
            (
                Error::corrupt("dirent name past block", Place::inode_at(Nid(36), 4096)),
                "corrupt image: dirent name past block (inode 36, byte 4096)",
            ),
            (Error::corrupt("no magic", Place::UNKNOWN), "corrupt image: no magic"),
            (Error::unsupported("bit 0x200"), "not supported: bit 0x200"),
            (Error::corrupt("x", Place::at(7)).for_inode(Nid(1)), "corrupt image: x (inode 1, byte 7)"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
