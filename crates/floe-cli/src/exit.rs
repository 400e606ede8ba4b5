//! The exit codes of all commands.

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
