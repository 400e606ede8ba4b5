//! Findings of a check.

use std::{borrow::Cow, fmt};

use floe_image::{Error, Place};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Everything can be read, but the image contains a wrong statement.
    Warning,
    /// Something cannot be read, or reads wrong.
    Error,
}

/// A fault of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The violated rule, as a short phrase that describes the fault.
    pub rule: Cow<'static, str>,
    /// The location.
    pub place: Place,
    /// The first path of the inode concerned, if it has one.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    /// The finding for a read that failed with this error.
    pub(super) fn of(error: Error, path: Option<Vec<u8>>) -> Self {
        let (rule, place) = match error {
            Error::Corrupt { rule, place } => (Cow::Borrowed(rule), place),
            Error::Io { place, error } => (Cow::Owned(error.to_string()), place),
            Error::WrongType { nid, .. } => (Cow::Owned(error.to_string()), Place::inode(nid)),
            other => (Cow::Owned(other.to_string()), Place::UNKNOWN),
        };
        Self { severity: Severity::Error, rule, place, path }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.severity)?;
        if let Some(path) = &self.path {
            write!(formatter, "{}: ", path.escape_ascii())?;
        }
        write!(formatter, "{}{}", self.rule, self.place)
    }
}
