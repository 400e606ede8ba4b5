//! `floe lab` on machines that lack something: a clear message, the measurements that are possible, and nothing left behind.
//!
//! Each program runs in its own mount namespace, in which all users may open the device, as on most machines, or something
//! is missing.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    copy_program,
    skip::{Need, ready},
};

const AS_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const WITHOUT_MOUNTING: &str = "setpriv --bounding-set=-sys_admin";
const NO_TRACEFS: &str = "mount -t tmpfs none /sys/kernel/tracing; \
    if test -d /sys/kernel/debug/tracing; then mount -t tmpfs none /sys/kernel/debug; fi";
const NO_CONTROL_GROUPS: &str = "umount -R /sys/fs/cgroup; mount -t tmpfs -o ro none /sys/fs/cgroup";
const FEW: [&str; 6] = ["--launches", "2", "--controls", "1", "--blocks", "1"];

/// The situation, its preparation, the user, the arguments, and the expected result.
type Row<'text, Expected> = (&'text str, &'text str, &'text str, Vec<&'text str>, Expected);

/// A copy of the program that a user can reach, wherever the project is.
struct Reachable {
    folder: tempfile::TempDir,
}

impl Reachable {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
        let device = folder.path().join("fuse");
        let made = Command::new("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"]).status();
        assert!(made.expect("mknod").success());
        Self { folder }
    }

    /// Runs `floe lab` in its own namespace, after a preparation, with the user that `identity` selects.
    fn lab(&self, preparation: &str, identity: &str, arguments: &[&str]) -> Output {
        let folder = self.folder.path();
        let script = format!(
            "set -e; mount --bind {} /dev/fuse; {preparation}; exec {identity} \"$@\"",
            folder.join("fuse").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(folder.join("floe")).arg("lab").args(arguments);
        // Its temporary files would be left here.
        command.env("TMPDIR", folder.join("tmp")).env_remove("XDG_RUNTIME_DIR");
        let _ = fs::create_dir(folder.join("tmp"));
        fs::set_permissions(folder.join("tmp"), fs::Permissions::from_mode(0o777)).expect("ours");
        command.stdin(Stdio::null()).output().expect("unshare")
    }

    fn is_tidy(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).expect("listed").flatten();
        let mut left: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        left.extend(
            mounts.lines().filter(|line| line.contains(self.folder.path().to_str().expect("text"))).map(Into::into),
        );
        left
    }
}

#[test]
fn missing_capabilities_are_reported_and_the_rest_is_measured() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("fusermount3")]) {
        return;
    }
    let place = Reachable::new();
    let launch = |more: &[&'static str]| [&["launch"], &FEW[..], more].concat();
    let rows: [Row<&[&str]>; 7] = [
        (
            "a user's launches",
            ":",
            AS_USER,
            launch(&[]),
            &["kernel counts for each thread", "needs root", "autogroup", "fastest on average", "blocks decompressed"],
        ),
        (
            "a user watches",
            ":",
            AS_USER,
            vec!["sched", "--thread", "floe*", "--seconds", "0.3"],
            &["kernel counts", "floe"],
        ),
        (
            "a user's pages",
            ":",
            AS_USER,
            vec!["alloc", "--rounds", "5"],
            &["without memory pressure only", "page pool"],
        ),
        (
            "no tracefs",
            NO_TRACEFS,
            WITHOUT_MOUNTING,
            launch(&["--variant", "directory@/etc", "--", "true"]),
            &["kernel counts for each thread", "cannot open tracefs", "fastest on average"],
        ),
        ("no control groups", NO_CONTROL_GROUPS, "", vec!["alloc", "--rounds", "5"], &["without memory pressure only"]),
        ("no FUSE", "mount --bind /dev/null /dev/fuse", "", launch(&["--variant", "kernel"]), &["fastest on average"]),
        ("all is there", ":", "", launch(&[]), &["kernel tracing", "trace records lost: 0", "kernel"]),
    ];
    for (what, preparation, identity, arguments, expected) in rows {
        let output = place.lab(preparation, identity, &arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{what}: {complaint}");
        for text in expected {
            assert!(said.contains(text), "{what}: no {text:?} in {said}");
        }
        assert_eq!(place.is_tidy(), [""; 0], "{what}");
    }
}

#[test]
fn impossible_measurements_are_refused_in_one_line() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("fusermount3")]) {
        return;
    }
    let place = Reachable::new();
    let launch = |more: &[&'static str]| [&["launch"], &FEW[..], more].concat();
    let rows: [Row<&str>; 6] = [
        ("a failing command", ":", "", launch(&["--", "sh", "-c", "echo out of luck >&2; exit 3"]), "out of luck"),
        ("a user's memory load", ":", AS_USER, launch(&["--load", "memory=40M"]), "control group"),
        ("memory load without groups", NO_CONTROL_GROUPS, "", launch(&["--load", "memory=40M"]), "control group"),
        ("no FUSE", "mount --bind /dev/null /dev/fuse", "", launch(&["--variant", "floe"]), "floe"),
        ("a user's kernel mount", ":", AS_USER, launch(&["--variant", "kernel"]), "cannot mount"),
        ("tracing without tracefs", NO_TRACEFS, WITHOUT_MOUNTING, launch(&["--tier", "tracing"]), "tracing needs root"),
    ];
    for (what, preparation, identity, arguments, expected) in rows {
        let output = place.lab(preparation, identity, &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        // Another lab may have changed the machine.
        let lines: Vec<_> = said.lines().filter(|line| !line.contains("waiting for another floe lab")).collect();
        assert!(said.contains(expected) && lines.len() == 1, "{what}: {said}");
        assert_eq!(place.is_tidy(), [""; 0], "{what}");
    }
}
