//! The checks before a change is accepted.

use std::{env, ffi::OsStr, path::Path, process::Command};

use floe_testkit::workspace_root;

use crate::{
    fixtures,
    task_error::{During, Outcome, TaskError},
    tidy,
};

/// Runs all checks except the tests. A failing check does not stop the others.
pub(crate) fn lint() -> Outcome {
    type Step = (&'static str, fn() -> Outcome);
    let steps: [Step; 5] = [
        ("format", || cargo("format", &["fmt", "--all", "--check"])),
        ("lints", || cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("docs", docs),
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

/// Builds the documentation. rustdoc can use what clippy made of the crates, but cargo reuses it only if it is told to compile
/// them in the same way as `cargo clippy -- -D warnings` does; else it compiles all of them once more. `CLIPPY_ARGS` is private to
/// `cargo clippy`: with a version that writes it in another way, this takes longer, and finds the same.
fn docs() -> Outcome {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace_root()).output();
    let sysroot = String::from_utf8(sysroot.during("rustc cannot be run")?.stdout).during("rustc")?;
    let clippy = Path::new(sysroot.trim()).join("bin/clippy-driver");
    let compiler = [
        ("RUSTC_WORKSPACE_WRAPPER", clippy.as_os_str()),
        ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__".as_ref()),
    ];
    let compiler = if clippy.is_file() { &compiler[..] } else { &[] };
    cargo_with("docs", &["doc", "--workspace", "--no-deps", "--document-private-items"], compiler)
}

fn cargo(what: &str, arguments: &[&str]) -> Outcome {
    cargo_with(what, arguments, &[])
}

fn cargo_with(what: &str, arguments: &[&str], variables: &[(&str, &OsStr)]) -> Outcome {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace_root()).env("RUSTDOCFLAGS", "-D warnings");
    command.envs(variables.iter().copied());
    let status = command.status().during("cargo cannot be run")?;
    if status.success() { Ok(()) } else { Err(TaskError::new(format!("{what}: cargo {} fails", arguments[0]))) }
}
