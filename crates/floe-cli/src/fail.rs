//! Failures of commands, and the exit codes.

use std::fmt;

use floe::{Error, OpenError};
use floe_fuse::MountError;
use floe_keeper::UnmountError;
use floe_mount::Failure;
use floe_sandbox::SandboxError;

/// The option of most commands for the offset of an image.
const OFFSET_OPTION: &str = "--offset ";

/// Why a command failed: one line for the user, and an exit code.
#[derive(Debug)]
pub(crate) struct Fail {
    message: String,
    exit: Exit,
    /// Where an image begins in a file that has none at the requested offset.
    image_at: Option<u64>,
    offset_option: &'static str,
}

impl Fail {
    /// A failure for a reason outside the image.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(message.into(), Exit::Failed)
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(message.into(), Exit::Usage)
    }

    /// The same failure with another exit code.
    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// The same failure of a program that has this option for the offset of an image, instead of `--offset`.
    pub(crate) fn with_offset_option(self, offset_option: &'static str) -> Self {
        Self { offset_option, ..self }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    fn new(message: String, exit: Exit) -> Self {
        Self { message, exit, image_at: None, offset_option: OFFSET_OPTION }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)?;
        match self.image_at {
            None => Ok(()),
            Some(0) => write!(formatter, ": omit {}", self.offset_option.trim_end_matches([' ', '='])),
            Some(at) => write!(formatter, ": give {}{at}", self.offset_option),
        }
    }
}

impl From<OpenError> for Fail {
    fn from(error: OpenError) -> Self {
        let exit = match &error {
            OpenError::NotAnImage { .. } => Exit::BadImage,
            OpenError::Image { error, .. } => exit_of(error),
            _ => Exit::Failed,
        };
        let image_at = if let OpenError::NotAnImage { found_at, .. } = &error { *found_at } else { None };
        Self { image_at, ..Self::new(error.to_string(), exit) }
    }
}

impl From<MountError> for Fail {
    fn from(error: MountError) -> Self {
        let exit = match &error {
            MountError::Image(error) => exit_of(error),
            _ => Exit::Failed,
        };
        Self::new(error.to_string(), exit)
    }
}

impl From<Failure> for Fail {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Usage(message) => Self::usage(message),
            Failure::Open(error) => error.into(),
            Failure::Mount(error) => error.into(),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<SandboxError> for Fail {
    fn from(error: SandboxError) -> Self {
        Self::failed(error.to_string())
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

/// The result of a command, as its exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Success.
    Done,
    /// Failure for a reason outside the image: a missing file, a permission, a source that cannot be read.
    Failed,
    /// Wrong usage.
    Usage,
    /// Not an image, a broken image, or an image with unsupported features.
    BadImage,
    /// Ended by a signal.
    Interrupted,
    /// A check found errors. This and the following are the codes of fsck.
    HasErrors,
    /// A check could not run.
    NotChecked,
    /// Wrong usage of a check.
    CheckUsage,
    /// A signal ended a check.
    CheckCancelled,
    /// The code that mount(8) expects from its helpers when a mount failed.
    MountHelper,
}

impl Exit {
    /// The section about exit codes in `--help`.
    pub(crate) const HELP: &'static str = "\
Exit codes:
  0  done
  1  failed: a file, a permission, the source of the image
  2  wrong usage
  3  the file is not an image, or the image is broken or uses unsupported features
Commands with other exit codes list them in their --help.";

    /// The numeric exit code.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::BadImage => 3,
            Self::HasErrors => 4,
            Self::NotChecked => 8,
            Self::CheckUsage => 16,
            Self::MountHelper | Self::CheckCancelled => 32,
            Self::Interrupted => 130,
        }
    }
}
