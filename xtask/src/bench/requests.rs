//! Counts the requests that a mount by Floe has answered.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::workload::Measurement;
use crate::task_error::{During, Outcome, TaskError};

/// The kinds of requests in the JSON of `floe status`, and their names in tables.
const KINDS: [(&str, &str); 10] = [
    ("lookup", "LOOKUP"),
    ("getattr", "GETATTR"),
    ("getxattr", "GETXATTR"),
    ("open", "OPEN"),
    ("read", "READ"),
    ("opendir", "OPENDIR"),
    ("readdir", "READDIR"),
    ("readdirplus", "READDIRPLUS"),
    ("readlink", "READLINK"),
    ("forget", "FORGET"),
];

/// The number of requests of each kind since the mount, from `floe status --json`. Kinds without requests are left out.
pub(super) fn count(floe: &Path, mount: &Path) -> Outcome<Vec<Measurement>> {
    let mut command = Command::new(floe);
    command.args(["status", "--json"]).arg(mount).stderr(Stdio::inherit());
    let output = command.output().during(floe.display())?;
    let status: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| TaskError::new(format!("floe status: {error}")))?;
    // The answer is one report, or a list of them.
    let report = status.get(0).unwrap_or(&status);
    let requests = report.get("requests").ok_or(TaskError::new("floe status shows no requests"))?;
    let count = |kind: &str| requests.get(kind).and_then(Value::as_u64).filter(|count| *count > 0);
    let counts = KINDS.iter().filter_map(|(kind, name)| Some(Measurement::less(name, count(kind)? as f64)));
    Ok(counts.collect())
}
