//! Checks beyond those of the compiler.

mod circles;
mod dependencies;
mod documents;
mod imports;
mod permissions;
mod source_files;
mod temporary_files;

use permissions::Permissions;

use crate::task_error::{Outcome, TaskError};

/// Runs all checks.
pub(crate) fn run() -> Outcome {
    let permissions = Permissions::read()?;
    let mut lines = dependencies::violations(&permissions)?;
    lines.extend(circles::violations()?);
    lines.extend(documents::violations()?);
    lines.extend(dependencies::library_violations()?);
    lines.extend(permissions::room_violations(&permissions)?);
    lines.extend(source_files::raw_name_violations()?);
    lines.extend(source_files::violations()?);
    lines.extend(temporary_files::violations()?);
    TaskError::from_lines("not tidy", &lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        super::run().expect("tidy");
    }
}
