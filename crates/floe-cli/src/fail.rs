//! Failures of commands.

use std::fmt;

use floe::{Error, OpenError};
use floe_fuse::{MountError, UnmountError};

use crate::exit::Exit;

/// Why a command failed: one line for the user, and an exit code.
#[derive(Debug)]
pub(crate) struct Fail {
    message: String,
    exit: Exit,
}

impl Fail {
    /// A failure for a reason outside the image.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Exit::Failed }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Exit::Usage }
    }

    /// The same failure with another exit code.
    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<OpenError> for Fail {
    fn from(error: OpenError) -> Self {
        let exit = match &error {
            OpenError::NotAnImage { .. } => Exit::BadImage,
            OpenError::Image { error, .. } => exit_of(error),
            _ => Exit::Failed,
        };
        Self { message: error.to_string(), exit }
    }
}

impl From<MountError> for Fail {
    fn from(error: MountError) -> Self {
        let exit = match &error {
            MountError::Image(error) => exit_of(error),
            _ => Exit::Failed,
        };
        Self { message: error.to_string(), exit }
    }
}

impl From<UnmountError> for Fail {
    fn from(error: UnmountError) -> Self {
        Self::failed(error.to_string())
    }
}

/// The exit code for an error, which depends on whether the image is at fault.
fn exit_of(error: &Error) -> Exit {
    if error.is_transient() { Exit::Failed } else { Exit::BadImage }
}
