//! Reads the reports of `floe status` about launches.

use std::{ffi::OsString, fs, os::unix::fs::FileExt, path::Path};

use serde_json::Value;

use crate::support::program::{Place, Serving, floe, run, told, until};

/// The kinds of requests that a replay makes before the launch does.
pub(crate) const KINDS: [&str; 5] = ["lookup", "read", "readdir", "readdirplus", "readlink"];

/// The report of `floe status`.
pub(crate) fn status(place: &Place) -> Value {
    let output = run(floe().args(["status", "--json"]).arg(&place.path));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report.get("mounts").map_or(report.clone(), |mounts| mounts[0].clone())
}

pub(crate) fn launch(place: &Place) -> Value {
    status(place)["launch"].clone()
}

pub(crate) fn is_state(place: &Place, state: &str) -> bool {
    launch(place)["state"] == state
}

pub(crate) fn wait_for_state(place: &Place, state: &str) -> Value {
    until(&format!("the launch is {state}: {}", launch(place)), || is_state(place, state));
    launch(place)
}

/// The requests that programs made, by kind: those of the replay are left out.
pub(crate) fn demand(report: &Value) -> Vec<(&'static str, u64)> {
    let count = |of: &Value, kind: &str| of[kind].as_u64().unwrap_or(0);
    KINDS.map(|kind| (kind, count(&report["requests"], kind) - count(&report["launch"]["requests"], kind))).to_vec()
}

pub(crate) fn total(demand: &[(&str, u64)]) -> u64 {
    demand.iter().map(|(_, count)| count).sum()
}

/// The requests between two reports.
pub(crate) fn between(before: &Value, after: &Value) -> Vec<(&'static str, u64)> {
    demand(before).into_iter().zip(demand(after)).map(|((kind, before), (_, after))| (kind, after - before)).collect()
}

pub(crate) fn profile_option(profile: &Path) -> [OsString; 2] {
    ["-o".into(), format!("profile={}", profile.display()).into()]
}

/// Begins a launch by reading the first byte of the program.
pub(crate) fn begin(place: &Place, file: &str) {
    let file = fs::File::open(place.file(file)).expect("it is there");
    let mut first = [0];
    file.read_exact_at(&mut first, 0).expect("it is read");
}

/// Unmounts. Retries, because a process that another test starts holds copies of all open files until it executes its
/// program.
pub(crate) fn detach(serving: &Serving) {
    let mut told_last = (None, String::new());
    let unmounted = || {
        told_last = told(&run(floe().arg("umount").arg(&serving.place.path)));
        assert!(told_last.0 == Some(0) || told_last.1.contains("in use"), "{told_last:?}");
        told_last.0 == Some(0)
    };
    until("the place is unmounted", unmounted);
}

pub(crate) fn unmount(serving: &mut Serving) {
    detach(serving);
    assert_eq!(serving.end().0.code(), Some(0));
}
