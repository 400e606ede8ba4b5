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
    /// The rule that is broken, as a phrase that says what is wrong.
    pub rule: Cow<'static, str>,
    /// Where.
    pub place: Place,
    /// The first path of the inode that it is about, if it has one.
    pub path: Option<Vec<u8>>,
}

impl Finding {
    /// The finding that the image cannot even be opened.
    pub(super) fn unopened(error: Error) -> Self {
        let (rule, place) = match error {
            Error::Corrupt { rule, place } => (Cow::Borrowed(rule), place),
            other => (Cow::Owned(other.to_string()), Place::UNKNOWN),
        };
        Self { severity: Severity::Error, rule, place, path: None }
    }
}

impl From<floe_erofs::check::Finding> for Finding {
    fn from(finding: floe_erofs::check::Finding) -> Self {
        let severity = match finding.severity {
            floe_erofs::check::Severity::Warning => Severity::Warning,
            floe_erofs::check::Severity::Error => Severity::Error,
        };
        Self { severity, rule: finding.rule, place: finding.place, path: finding.path }
    }
}

impl From<floe_squashfs::check::Finding> for Finding {
    fn from(finding: floe_squashfs::check::Finding) -> Self {
        let severity = match finding.severity {
            floe_squashfs::check::Severity::Warning => Severity::Warning,
            floe_squashfs::check::Severity::Error => Severity::Error,
        };
        Self { severity, rule: finding.rule, place: finding.place, path: finding.path }
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
