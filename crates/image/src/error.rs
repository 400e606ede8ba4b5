//! What can go wrong with an image.

use std::{borrow::Cow, fmt, io, sync::Arc};

use crate::{DeviceId, Nid};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with an image. Cheap to clone, because one failure may answer many waiters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The source could not be read.
    Io {
        /// Where in the source.
        place: Place,
        /// What the operating system said.
        error: Arc<io::Error>,
    },
    /// The image breaks a rule of its format.
    Corrupt {
        /// The rule, as a short phrase that says what is wrong: "dirent name past block".
        rule: &'static str,
        /// Where it is broken.
        place: Place,
    },
    /// The image uses something that this reader does not know.
    Unsupported {
        /// Its name.
        feature: Cow<'static, str>,
    },
    /// The inode is not of the kind that the operation needs.
    WrongType {
        /// The kind it needs: "a directory".
        expected: &'static str,
        /// The inode.
        nid: Nid,
    },
    /// There was no memory within the budget for an operation that may not wait for it.
    NoMemory,
    /// The bytes are not in memory, and the operation may not wait for them.
    WouldBlock,
    /// The reader was closed, or gave up before the operation was done.
    Cancelled,
}

/// Where something is wrong, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The inode.
    pub nid: Option<Nid>,
    /// The source, where it is not the image itself.
    pub device: DeviceId,
    /// The byte of that source, or of the decoded metadata where the rule is about such.
    pub offset: Option<u64>,
}

impl Place {
    /// Nothing is known of the place.
    pub const UNKNOWN: Self = Self { nid: None, device: DeviceId(0), offset: None };

    /// A byte of the image.
    pub const fn at(offset: u64) -> Self {
        Self { nid: None, device: DeviceId(0), offset: Some(offset) }
    }

    /// An inode.
    pub const fn inode(nid: Nid) -> Self {
        Self { nid: Some(nid), device: DeviceId(0), offset: None }
    }

    /// A byte of the image that is read for an inode.
    pub const fn inode_at(nid: Nid, offset: u64) -> Self {
        Self { nid: Some(nid), device: DeviceId(0), offset: Some(offset) }
    }
}

impl Error {
    /// A broken rule at a place.
    pub const fn corrupt(rule: &'static str, place: Place) -> Self {
        Self::Corrupt { rule, place }
    }

    /// A feature that is not known.
    pub fn unsupported(feature: impl Into<Cow<'static, str>>) -> Self {
        Self::Unsupported { feature: feature.into() }
    }

    /// What the operating system said when bytes at `offset` of `device` were read.
    pub fn io(device: DeviceId, offset: u64, error: io::Error) -> Self {
        Self::Io { place: Place { nid: None, device, offset: Some(offset) }, error: Arc::new(error) }
    }

    /// The same error with the inode named, where it was not known at the place that found it.
    pub fn for_inode(mut self, nid: Nid) -> Self {
        if let Self::Io { place, .. } | Self::Corrupt { place, .. } = &mut self {
            place.nid.get_or_insert(nid);
        }
        self
    }

    /// Whether the same read may succeed later: the fault is the source's or the machine's, not the image's.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::NoMemory | Self::WouldBlock | Self::Cancelled)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { place, error } => write!(formatter, "cannot read the image{place}: {error}"),
            Self::Corrupt { rule, place } => write!(formatter, "corrupt image: {rule}{place}"),
            Self::Unsupported { feature } => write!(formatter, "not supported: {feature}"),
            Self::WrongType { expected, nid } => write!(formatter, "inode {nid} is not {expected}"),
            Self::NoMemory => formatter.write_str("no memory within the budget"),
            Self::WouldBlock => formatter.write_str("not in memory"),
            Self::Cancelled => formatter.write_str("cancelled before it was done"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error.as_ref()),
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
