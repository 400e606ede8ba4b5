//! What a check finds.

use std::{borrow::Cow, fmt};

use crate::{Error, Place};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Everything can be read, but the image contradicts itself, or holds what no tool writes.
    Warning,
    /// Something cannot be read, or reads wrong.
    Error,
}

/// Something that is wrong with an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The broken rule, as a short phrase that says what is wrong.
    pub rule: Cow<'static, str>,
    /// Where.
    pub place: Place,
    /// The path that led to the inode first, if the finding is about one.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    /// A finding of severity [`Severity::Error`], without a path.
    pub fn error(rule: impl Into<Cow<'static, str>>, place: Place) -> Self {
        Self { severity: Severity::Error, rule: rule.into(), place, path: None }
    }

    /// A finding of severity [`Severity::Warning`], without a path.
    pub fn warning(rule: impl Into<Cow<'static, str>>, place: Place) -> Self {
        Self { severity: Severity::Warning, rule: rule.into(), place, path: None }
    }

    /// This finding, about the inode at `path`.
    pub fn with_path(self, path: Option<Vec<u8>>) -> Self {
        Self { path, ..self }
    }
}

impl From<&Error> for Finding {
    /// The finding that a read failed.
    fn from(error: &Error) -> Self {
        match error {
            Error::Corrupt { rule, place } => Self::error(*rule, *place),
            Error::Io { place, error } => Self::error(format!("cannot be read: {error}"), *place),
            Error::WrongType { nid, .. } => Self::error(error.to_string(), Place::inode(*nid)),
            _ => Self::error(error.to_string(), Place::UNKNOWN),
        }
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
