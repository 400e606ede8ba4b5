//! The choice between the kernel's EROFS in front and FUSE.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    bench::contender::Contender,
    task_error::{Outcome, TaskError},
};

/// How long a mount may take to answer `floe status`.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which file system applications see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Front {
    /// The kernel's EROFS.
    Kernel,
    /// FUSE alone.
    Fuse,
}

impl Front {
    /// Both, in the order of tables.
    pub(super) const ALL: [Self; 2] = [Self::Kernel, Self::Fuse];

    /// Its name in `-o front=`, and in the answers of `floe status`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Fuse => "fuse",
        }
    }

    /// Checks that a mount of Floe has this front. Returns why, in the words of `floe status`.
    ///
    /// # Errors
    /// It has another one, or does not answer.
    pub(super) fn check(self, contender: &Contender, mount: &Path) -> Outcome<String> {
        let started = Instant::now();
        let (found, reason) = loop {
            match kind_and_reason(contender, mount) {
                // A mount answers shortly after it is there.
                Err(_) if started.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
                outcome => break outcome?,
            }
        };
        if found == self.name() {
            return Ok(reason);
        }
        let wanted = self.name();
        Err(TaskError::new(format!("{}: the front is {found} ({reason}), not {wanted}", contender.name)))
    }
}

fn kind_and_reason(contender: &Contender, mount: &Path) -> Outcome<(String, String)> {
    let mut command = contender.query().ok_or(TaskError::new(format!("{} is not Floe", contender.name)))?;
    let output = command.args(["status", "--json"]).arg(mount).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(TaskError::new(format!("floe status: {}", words.trim())));
    }
    let status: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| TaskError::new(format!("floe status: {error}")))?;
    let shown = |field: &str| status["front"][field].as_str().map(str::to_owned);
    let front = shown("kind").zip(shown("reason"));
    front.ok_or(TaskError::new("floe status --json shows no front"))
}
