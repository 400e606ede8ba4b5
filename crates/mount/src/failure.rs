//! Why an image cannot be mounted.

use std::fmt;

use floe::OpenError;
use floe_fuse::MountError;
use floe_sandbox::SandboxError;

/// Why an image cannot be mounted, or a mount cannot be queried: one line for the user.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The settings contradict each other, or one has an invalid value.
    Usage(String),
    /// The image cannot be opened.
    Open(OpenError),
    /// The image cannot be mounted.
    Mount(MountError),
    /// Any other reason outside the image.
    Failed(String),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) => formatter.write_str(message),
            Self::Open(error) => error.fmt(formatter),
            Self::Mount(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Failure {}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        Self::Failed(error.to_string())
    }
}
