//! The checks before a change is accepted.

use std::{env, process::Command};

use floe_testkit::workspace_root;

use crate::{
    fixtures,
    task_error::{During, Outcome, TaskError},
    tidy,
};

/// Runs all checks except the tests and what belongs to `nightly`. A failing check does not stop the others.
pub(crate) fn lint() -> Outcome {
    type Step = (&'static str, fn() -> Outcome);
    let steps: [Step; 4] = [
        ("format", || cargo("format", &["fmt", "--all", "--check"])),
        ("lints", || cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("tidy", tidy::run),
        ("fixtures", fixtures::check),
    ];
    let mut failures = Vec::new();
    for (name, step) in steps {
        eprintln!("== {name}");
        failures.extend(step().err().map(|error| format!("{error:?}")));
    }
    TaskError::from_lines("checks failed", &failures)
}

/// Runs all checks.
pub(crate) fn all() -> Outcome {
    lint()?;
    cargo("tests", &["test", "--workspace"])
}

fn cargo(what: &str, arguments: &[&str]) -> Outcome {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(program).args(arguments).current_dir(workspace_root()).status();
    let status = status.during("cargo cannot be run")?;
    if status.success() { Ok(()) } else { Err(TaskError::new(format!("{what}: cargo {} fails", arguments[0]))) }
}
