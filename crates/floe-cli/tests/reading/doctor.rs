//! `floe doctor` in different surroundings.

use std::process::Command;

use floe_testkit::skip::{self, Need};

/// The answer to the arguments of unshare(1), which makes the surroundings.
fn doctor(surroundings: &[&str]) -> (bool, String) {
    let floe = env!("CARGO_BIN_EXE_floe");
    let mut command = match surroundings {
        [] => Command::new(floe),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(floe);
            command
        }
    };
    let output = command.arg("doctor").output().expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is said about a topic.
fn line<'a>(answer: &'a str, topic: &str) -> &'a str {
    answer.lines().find(|line| line.contains(topic)).unwrap_or_else(|| panic!("nothing about {topic}: {answer}"))
}

#[test]
fn root_may_mount() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (works, answer) = doctor(&[]);
    assert!(works, "{answer}");
    assert!(line(&answer, "/dev/fuse").starts_with("ok"), "{answer}");
    assert!(line(&answer, "mount permission").contains("this process can mount"), "{answer}");
}

#[test]
fn a_user_namespace_is_told_from_the_machine() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (works, answer) = doctor(&["unshare", "--user", "--map-root-user", "--mount"]);
    assert!(works, "{answer}");
    assert!(line(&answer, "kernel front").starts_with("limited"), "{answer}");
}

#[test]
fn a_machine_without_the_device_is_told_what_to_do() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    // A /dev in which nothing is, seen by this process alone.
    let script = "mount -t tmpfs none /dev && exec \"$0\" \"$@\"";
    let (works, answer) = doctor(&["unshare", "--mount", "sh", "-c", script]);
    assert!(!works, "{answer}");
    assert!(line(&answer, "/dev/fuse").starts_with("MISSING"), "{answer}");
    assert!(answer.contains("modprobe fuse"), "{answer}");
}

#[test]
fn json_has_one_object_a_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_floe")).args(["doctor", "--json"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().count() >= 10, "{text}");
    assert!(text.lines().all(|line| line.starts_with("{\"topic\":") && line.ends_with('}')), "{text}");
}
