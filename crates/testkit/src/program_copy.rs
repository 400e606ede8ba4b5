//! Copies of programs.

use std::{path::Path, process::Command};

/// Copies a program, in a process of its own, so that the copy can be run.
///
/// A process that writes the copy itself cannot safely run it: a child that another thread forks meanwhile inherits the
/// descriptor, and until that child calls `execve` the copy is busy (`ETXTBSY`).
///
/// # Panics
///
/// The program cannot be copied.
pub fn copy_program(program: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (program, to) = (program.as_ref(), to.as_ref());
    let status = Command::new("cp").arg("-p").args([program, to]).status().expect("cp runs");
    assert!(status.success(), "{} cannot be copied to {}", program.display(), to.display());
}
