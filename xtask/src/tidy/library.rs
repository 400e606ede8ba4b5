//! The crates that the library `floe` must not depend on.

use std::{env, process::Command};

use floe_testkit::workspace_root;

use crate::task_error::{During, Outcome, TaskError};

/// Crates for command lines, progress bars, signals, mounts and confinement: they belong to the program.
const FOR_THE_PROGRAM: [&str; 11] = [
    "clap",
    "clap_builder",
    "console",
    "floe-fuse-wire",
    "floe-keeper",
    "indicatif",
    "landlock",
    "regex",
    "seccompiler",
    "serde_json",
    "signal-hook",
];

/// Each crate for the program that an embedder of `floe` would have to build.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(["tree", "--package", "floe", "--edges", "normal", "--prefix", "none", "--offline"]);
    let output = command.current_dir(workspace_root()).output().during("cargo cannot be run")?;
    if !output.status.success() {
        return Err(TaskError::new(String::from_utf8_lossy(&output.stderr)));
    }
    Ok(violations_of(&String::from_utf8_lossy(&output.stdout)))
}

/// The crates for the program in a list of `name version`.
fn violations_of(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut lines: Vec<_> = names
        .filter(|name| FOR_THE_PROGRAM.contains(name))
        .map(|name| format!("the library floe depends on {name}, which is for the program"))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_for_the_program_are_found() {
        for (tree, expected) in [
            ("floe v0.1.0 (/a)\nfloe-engine v0.1.0 (/b)\nbytes v1.10.0\n", 0),
            ("floe v0.1.0 (/a)\nclap v4.6.0\nclap v4.6.0 (*)\n", 1),
            ("floe v0.1.0 (/a)\nindicatif v0.18.0\nsignal-hook v0.4.0\n", 2),
        ] {
            assert_eq!(violations_of(tree).len(), expected, "{tree}");
        }
    }
}
