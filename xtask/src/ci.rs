//! What is checked before a change is taken.

use std::{env, process::Command};

use floe_testkit::workspace_root;

use crate::{
    complaint::{Complaint, During, Outcome},
    fixtures, tidy,
};

/// Everything but the tests.
pub(crate) fn lint() -> Outcome {
    cargo("format", &["fmt", "--all", "--check"])?;
    cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    cargo("docs", &["doc", "--workspace", "--no-deps", "--document-private-items"])?;
    eprintln!("== tidy");
    tidy::run()?;
    eprintln!("== fixtures");
    fixtures::check()
}

/// Everything.
pub(crate) fn all() -> Outcome {
    lint()?;
    cargo("tests", &["test", "--workspace"])
}

fn cargo(what: &str, arguments: &[&str]) -> Outcome {
    eprintln!("== {what}: cargo {}", arguments.join(" "));
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace_root()).env("RUSTDOCFLAGS", "-D warnings");
    let status = command.status().during("cargo cannot be run")?;
    if status.success() { Ok(()) } else { Err(Complaint::new(format!("{what}: cargo {} fails", arguments[0]))) }
}
