//! Findings of a check.

use std::{borrow::Cow, fmt};

use floe_image::{Error, Place};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Everything can be read, but the image contains wrong statements, or some that no tool writes.
    Warning,
    /// Something cannot be read, or differs from what was stored.
    Error,
}

/// A fault of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The violated rule, as a phrase.
    pub rule: Cow<'static, str>,
    /// The location.
    pub place: Place,
    /// The first path to the inode, if there is one.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    pub(super) fn error(rule: impl Into<Cow<'static, str>>, place: Place) -> Self {
        Self { severity: Severity::Error, rule: rule.into(), place, path: None }
    }

    pub(super) fn warning(rule: impl Into<Cow<'static, str>>, place: Place) -> Self {
        Self { severity: Severity::Warning, rule: rule.into(), place, path: None }
    }

    /// The finding for a failed read.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Corrupt { rule, place } => Self::error(*rule, *place),
            Error::Io { place, error } => Self::error(format!("cannot be read: {error}"), *place),
            other => Self::error(other.to_string(), Place::UNKNOWN),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(formatter, "{severity}: ")?;
        if let Some(path) = &self.path {
            write!(formatter, "{}: ", path.escape_ascii())?;
        }
        write!(formatter, "{}{}", self.rule, self.place)
    }
}
