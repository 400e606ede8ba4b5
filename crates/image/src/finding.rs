//! Findings of an image check.

use std::{borrow::Cow, fmt};

use crate::{Error, Place};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Everything can be read, but the image is inconsistent or has a structure that no known tool writes.
    Warning,
    /// Part of the image cannot be read, or reads return wrong bytes.
    Error,
}

/// A fault of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The violated rule, as a short phrase that describes the fault.
    pub rule: Cow<'static, str>,
    /// The location of the fault.
    pub place: Place,
    /// The path by which the inode was first reached, if the finding is about an inode.
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

    /// Adds the path of the inode.
    pub fn with_path(self, path: Option<Vec<u8>>) -> Self {
        Self { path, ..self }
    }
}

impl From<&Error> for Finding {
    /// Converts the error of a failed read.
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
