//! Why a process could not be confined.

use std::fmt;

/// Why a process could not be confined. Its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum SandboxError {
    /// Other threads run already: they would stay outside.
    Threads(usize),
    /// The kernel does not have a mechanism that was required.
    Missing(&'static str),
    /// A mechanism is there, and failed.
    Failed {
        /// Which one.
        mechanism: &'static str,
        /// What it said.
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
            Self::Threads(count) => write!(formatter, "cannot confine the process: it has {count} threads already"),
            Self::Missing(mechanism) => write!(
                formatter,
                "cannot confine the process: this kernel does not enforce {mechanism}, which --sandbox=require asks for"
            ),
            Self::Failed { mechanism, reason } => {
                write!(formatter, "cannot confine the process ({mechanism}): {reason}; --no-sandbox goes without")
            }
        }
    }
}

impl std::error::Error for SandboxError {}
