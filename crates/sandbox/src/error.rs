//! Errors of confining a process.

use std::fmt;

/// The reason for which a process could not be confined. The message is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum SandboxError {
    /// Other threads are already running and would remain unconfined.
    Threads(usize),
    /// The kernel lacks a required mechanism.
    Missing(&'static str),
    /// An extraction could change files outside its target.
    ChangesElsewhere,
    /// A supported mechanism failed.
    Failed {
        /// The mechanism.
        mechanism: &'static str,
        /// The reason.
        reason: String,
    },
}

impl SandboxError {
    pub(crate) fn failed(mechanism: &'static str, reason: impl fmt::Display) -> Self {
        Self::Failed { mechanism, reason: reason.to_string() }
    }
}

impl fmt::Display for SandboxError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads(count) => write!(
                formatter,
                "cannot confine the process: it has {count} threads already; use --sandbox=off to run without"
            ),
            Self::Missing(mechanism) => write!(
                formatter,
                "cannot confine the process: this kernel does not enforce {mechanism}, which --sandbox=require requires"
            ),
            Self::ChangesElsewhere => formatter.write_str(
                "cannot confine the process: its capabilities let it change files outside the target, which --sandbox=require \
                 forbids: extract as an ordinary user, or as root with CAP_SYS_ADMIN on Linux 5.12 or later",
            ),
            Self::Failed { mechanism, reason } => {
                write!(formatter, "cannot confine the process ({mechanism}): {reason}; use --sandbox=off to run without")
            }
        }
    }
}

impl std::error::Error for SandboxError {}
