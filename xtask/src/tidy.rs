//! Checks beyond those of the compiler.

mod dependencies;
mod library;
mod permissions;
mod rooms;
mod source_files;

use permissions::Permissions;

use crate::task_error::{Outcome, TaskError};

/// Runs all checks.
pub(crate) fn run() -> Outcome {
    let permissions = Permissions::read()?;
    let mut lines = dependencies::violations(&permissions)?;
    lines.extend(library::violations()?);
    lines.extend(rooms::violations(&permissions)?);
    lines.extend(source_files::violations()?);
    TaskError::from_lines("not tidy", &lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        super::run().expect("tidy");
    }
}
