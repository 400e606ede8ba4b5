//! What the compiler does not check.

mod dependencies;
mod library;
mod rooms;
mod source_files;

use crate::complaint::{Complaint, Outcome};

/// Checks all of it.
pub(crate) fn run() -> Outcome {
    let mut lines = dependencies::violations()?;
    lines.extend(library::violations()?);
    lines.extend(rooms::violations()?);
    lines.extend(source_files::violations()?);
    Complaint::from_lines("not tidy", &lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        super::run().expect("tidy");
    }
}
