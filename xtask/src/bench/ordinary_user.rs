//! An ordinary user, as whom programs are run.

use std::{ffi::OsStr, os::unix::fs::chown, path::Path, process::Command};

use crate::task_error::{During, Outcome};

/// A user without privileges. The numbers of the user and the group are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OrdinaryUser {
    /// Its number.
    pub(super) uid: u32,
}

impl OrdinaryUser {
    /// A command that runs a program as this user; needs root.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={0}", self.uid)).arg(format!("--regid={0}", self.uid)).arg("--clear-groups");
        // What the user's programs write is the user's.
        command.env("HOME", "/nonexistent").env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
        command.arg(program);
        command
    }

    /// Makes the user the owner of a file or a directory.
    pub(super) fn own(self, path: &Path) -> Outcome {
        chown(path, Some(self.uid), Some(self.uid)).during(path.display())
    }
}
