//! Errors of operations on snapshots.

use std::{fmt, io};

use tonic::{Code, Status};

/// Why an operation failed. containerd distinguishes the kinds.
#[derive(Debug)]
pub enum SnapshotError {
    /// There is no such snapshot.
    NotFound(String),
    /// There is one with this name already. For a remote layer, this means that it need not be fetched.
    AlreadyExists(String),
    /// The state of the snapshot does not permit the operation.
    FailedPrecondition(String),
    /// The request makes no sense.
    InvalidArgument(String),
    /// A file cannot be read or written, or a layer cannot be mounted.
    Failed(String),
}

pub(crate) type Result<T> = std::result::Result<T, SnapshotError>;

impl SnapshotError {
    /// A failure to do something with the file or directory at `path`.
    pub(crate) fn file(path: &std::path::Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::Failed(format!("{}: {error}", floe_image::ShownName::shown(path)))
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(name) => write!(formatter, "snapshot {name}: not found"),
            Self::AlreadyExists(name) => write!(formatter, "snapshot {name}: already exists"),
            Self::FailedPrecondition(message) | Self::InvalidArgument(message) | Self::Failed(message) => {
                formatter.write_str(message)
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<SnapshotError> for Status {
    fn from(error: SnapshotError) -> Self {
        let code = match &error {
            SnapshotError::NotFound(_) => Code::NotFound,
            SnapshotError::AlreadyExists(_) => Code::AlreadyExists,
            SnapshotError::FailedPrecondition(_) => Code::FailedPrecondition,
            SnapshotError::InvalidArgument(_) => Code::InvalidArgument,
            SnapshotError::Failed(_) => Code::Unknown,
        };
        Self::new(code, error.to_string())
    }
}
