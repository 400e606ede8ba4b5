//! The programs that are launched.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::task_error::{During, Outcome, TaskError};

/// A program that is launched out of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Program {
    /// python3 importing json, email, argparse and http.client
    Python,
    /// node printing the version of npm
    Node,
}

/// The C library, below /usr.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";

impl Program {
    /// The name of the program in file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    /// The launch, for the title of the results.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Python => "python3 importing json, email, argparse and http.client",
            Self::Node => "node printing the version of npm",
        }
    }

    /// The files and directories below /usr that it needs.
    pub(super) fn members(self) -> Vec<PathBuf> {
        let own: &[&str] = match self {
            Self::Python => &["bin/python3.11", "lib/python3.11"],
            Self::Node => &["bin/node", "lib/node_modules"],
        };
        own.iter().copied().chain([LIBRARIES, "lib64"]).map(PathBuf::from).collect()
    }

    /// The command that launches it out of a mount of /usr.
    pub(super) fn command(self, mount: &Path) -> Command {
        let usr = mount.join("usr");
        let libraries = usr.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        match self {
            Self::Python => {
                command.env("PYTHONHOME", &usr).arg(usr.join("bin/python3.11"));
                command.args(["-S", "-c", "import json, email, argparse, http.client"]);
            }
            Self::Node => {
                command.env("npm_config_logs_max", "0").env("npm_config_update_notifier", "false");
                command.arg(usr.join("bin/node")).arg(usr.join("lib/node_modules/npm/bin/npm-cli.js")).arg("--version");
            }
        }
        command
    }
}

/// Runs a program that must succeed.
pub(in crate::bench) fn succeed(command: &mut Command) -> Outcome {
    let output = command.output().during(command.get_program().display())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(TaskError::new(format!("{} fails: {}", command.get_program().display(), words.trim())))
}
