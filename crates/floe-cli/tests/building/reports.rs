//! The output files of `floe record` and `floe lab`.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::{
    copy_program, run_bounded,
    skip::{self, Need},
};

/// Far less than the measurements below would take.
const AT_ONCE: Duration = Duration::from_secs(120);
/// A measurement of some milliseconds, which every user may run.
const SHORT: [&str; 5] = ["lab", "alloc", "--rounds", "2", "--pages=1"];

fn floe(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_unwritable_report_is_refused_before_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("directory")).expect("made");
    let endless = ["lab", "alloc", "--rounds", "1000000000", "--pages", "1"];
    for option in ["--json", "--html"] {
        for (path, words) in [
            ("missing/report", "cannot write missing/report: No such file"),
            ("directory", "cannot write directory: Is a directory"),
        ] {
            let mut command = floe(folder.path(), &[&endless[..], &[option, path]].concat());
            let run = run_bounded(&mut command, AT_ONCE).expect("floe runs");
            assert!(!run.is_timed_out, "{option} {path} is not tried before the measurement");
            assert_eq!(run.status.code(), Some(1), "{option} {path}: {}", run.stderr);
            assert!(run.stderr.contains(words) && run.stderr.lines().count() == 1, "{}", run.stderr);
        }
    }
    // The report that was created first is removed again.
    let arguments = [&endless[..], &["--json", "new", "--html", "directory"]].concat();
    let run = run_bounded(&mut floe(folder.path(), &arguments), AT_ONCE).expect("floe runs");
    assert!(!run.is_timed_out && !folder.path().join("new").exists(), "{}", run.stderr);
}

#[test]
fn a_failed_measurement_keeps_the_earlier_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let failing = ["lab", "alloc", "--pages", "0", "--json", "report"];
    assert_eq!(floe(folder.path(), &failing).stderr(Stdio::null()).status().expect("floe runs").code(), Some(1));
    assert!(!report.exists());
    fs::write(&report, "earlier").expect("written");
    assert_eq!(floe(folder.path(), &failing).stderr(Stdio::null()).status().expect("floe runs").code(), Some(1));
    assert_eq!(fs::read(&report).expect("read"), b"earlier");
}

#[test]
fn a_report_is_written_into_a_file_that_cannot_be_replaced() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
    let script = "touch mounted; mount --bind report mounted; \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups ./floe \"$@\"";
    for target in ["report", "mounted"] {
        fs::write(&report, vec![b' '; 1_000_000]).expect("written");
        fs::set_permissions(&report, Permissions::from_mode(0o666)).expect("ours");
        let before = fs::metadata(&report).expect("there").ino();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-e", "-c", script, "sh"]).args(SHORT);
        command.args(["--json", target]).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let output = command.output().expect("unshare runs");
        assert!(output.status.success(), "{target}: {}", said(&output));
        assert_eq!(fs::metadata(&report).expect("there").ino(), before, "{target}");
        let text = fs::read(&report).expect("read");
        serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{target}: {error}"));
        assert!(text.len() < 1_000_000, "{target}: the end of the earlier report is left");
    }
}

#[test]
fn reports_may_go_to_pipes() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("there is mkfifo").success());
    let reader = thread::spawn(move || fs::read(pipe).expect("read"));
    let output = floe(folder.path(), &[&SHORT[..], &["--json", "pipe"]].concat()).output().expect("floe runs");
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice::<serde_json::Value>(&reader.join().expect("it reads")).expect("JSON");
}

#[test]
fn an_unwritable_profile_is_refused_before_the_launch() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    for directory in ["source", "mount"] {
        fs::create_dir(folder.join(directory)).expect("made");
    }
    assert!(floe(folder, &["mkfs", "image", "source"]).status().expect("floe runs").success());
    let record = |output: &str, command: &[&str]| {
        let arguments = [&["record", "mount", "--image", "image", "--output", output, "--"], command].concat();
        floe(folder, &arguments).output().expect("floe runs")
    };
    let output = record("missing/profile", &["touch", "launched"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "floe: cannot write missing/profile: No such file or directory (os error 2)\n");
    assert!(!folder.join("launched").exists());
    // A launch that is not possible leaves no profile, or the earlier one.
    assert_eq!(record("profile", &["/nothing/there"]).status.code(), Some(1));
    assert!(!folder.join("profile").exists());
    fs::write(folder.join("profile"), "earlier").expect("written");
    assert_eq!(record("profile", &["/nothing/there"]).status.code(), Some(1));
    assert_eq!(fs::read(folder.join("profile")).expect("read"), b"earlier");
    assert_eq!(record("profile", &["true"]).status.code(), Some(0));
    assert!(fs::read_to_string(folder.join("profile")).expect("read").starts_with("# floe profile"));
}
