//! An image to be made.

use std::{fmt, path::Path, process::Command};

use crate::task_error::{During, Outcome, TaskError};

/// The prefix that passes the tree as a tar archive.
const FROM_TAR: &str = "from-tar";

/// An image to be made: with which options, and of what.
pub(super) struct Build {
    options: Vec<String>,
    from_tar: bool,
}

impl Build {
    /// Parses options of `floe mkfs` with the optional prefix `from-tar`.
    pub(super) fn parse(text: &str) -> Self {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let from_tar = words.first().is_some_and(|word| word == FROM_TAR);
        Self { options: words.into_iter().skip(usize::from(from_tar)).collect(), from_tar }
    }

    /// Builds the image; keeps a tar archive in `scratch` during the build.
    pub(super) fn run(&self, floe: &Path, tree: &Path, scratch: &Path, image: &Path) -> Outcome {
        let archive = scratch.join("tree.tar");
        let mut mkfs = Command::new(floe);
        mkfs.args(["mkfs", "--quiet"]).args(&self.options).arg(image);
        if self.from_tar {
            let mut tar = Command::new("tar");
            tar.args(["--create", "--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--file"]);
            succeed(tar.arg(&archive).arg("--directory").arg(tree).arg("."))?;
            succeed(mkfs.arg(&archive))?;
            std::fs::remove_file(&archive).during(archive.display())
        } else {
            succeed(mkfs.arg(tree))
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.from_tar.then_some(FROM_TAR);
        let words: Vec<&str> = source.into_iter().chain(self.options.iter().map(String::as_str)).collect();
        formatter.write_str(if words.is_empty() { "uncompressed" } else { "" })?;
        formatter.write_str(&words.join(" "))
    }
}

/// Runs a program that must succeed.
pub(super) fn succeed(command: &mut Command) -> Outcome {
    let output = command.output().during(command.get_program().display())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(TaskError::new(format!("{}: {}: {}", command.get_program().display(), output.status, words.trim())))
}
