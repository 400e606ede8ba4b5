//! The exit codes of the whole command line.

/// How a command ended, as the exit code tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// It is done.
    Done,
    /// It failed for a reason outside of the image: a missing file, a permission, a source that cannot be read.
    Failed,
    /// It was not called as it should be.
    Usage,
    /// The image is not one, is broken, or uses what this version does not know.
    BadImage,
    /// A signal ended it.
    Interrupted,
    /// A check found errors. This and the following are the codes of fsck.
    HasErrors,
    /// A check could not be carried out.
    NotChecked,
    /// A check was not called as it should be.
    CheckUsage,
    /// A signal ended a check.
    CheckCancelled,
    /// mount(8) wants this of its helpers when a mount failed.
    MountHelper,
}

impl Exit {
    /// What `--help` says of exit codes.
    pub(crate) const HELP: &'static str = "\
Exit codes:
  0  done
  1  failed: a file, a permission, the source of the image
  2  wrong usage
  3  the file is no image, or the image is broken or uses what this version does not know
Each command says in its --help where it differs.";

    /// The number.
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
