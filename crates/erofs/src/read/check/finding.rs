//! What a check finds.

use std::{borrow::Cow, fmt};

use floe_image::{Error, Place};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Everything can be read, but the image says something that is not so.
    Warning,
    /// Something cannot be read, or reads wrong.
    Error,
}

/// Something that is wrong with an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule that is broken, as a short phrase that says what is wrong.
    pub rule: Cow<'static, str>,
    /// Where.
    pub place: Place,
    /// The first path of the inode that it is about, if it has one.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    /// The finding that a read ended in this error.
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
