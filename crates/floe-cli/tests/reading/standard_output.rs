//! A standard output that cannot be written: an error if there is output, silence if the reader has closed its end.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::check_rows;

use crate::support::program::{demo, run};

/// Commands that print, by the name of the program.
const COMMANDS: &[&[&str]] = &[
    &["floe", "ls", "IMAGE"],
    &["floe", "ls", "-lR", "IMAGE"],
    &["floe", "cat", "IMAGE", "/README.txt"],
    &["floe", "stat", "IMAGE"],
    &["floe", "check", "IMAGE"],
    &["floe", "dump", "IMAGE"],
    &["floe", "demo", "--no-mount"],
    &["floe", "--help"],
    &["floe", "--version"],
    &["floe", "mount", "--help"],
    &["dump.erofs", "IMAGE"],
    &["dump.erofs", "--help"],
    &["fsck.erofs", "--version"],
    &["mkfs.erofs", "--help"],
    &["erofsfuse", "--help"],
    &["squashfuse_ll", "--version"],
    &["unsquashfs", "-help"],
    &["unsquashfs", "-version"],
];

/// Runs a command through a shell, which closes or redirects its standard output.
fn through_shell(words: &[&str], redirection: &str) -> Output {
    let image = demo();
    let words = words.iter().map(|word| if *word == "IMAGE" { image.to_str().expect("text") } else { word });
    let words: Vec<&str> = words.collect();
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(words[0]);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_floe"), &program).expect("a link");
    let script = format!("exec \"$@\" {redirection}");
    run(Command::new("sh").args(["-c", &script, "sh"]).arg(program).args(&words[1..]))
}

fn complaints(words: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    for (redirection, expected) in
        [(">&-", "standard output is closed"), (">/dev/full", "standard output: No space left on device")]
    {
        let output = through_shell(words, redirection);
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_failure = output.status.code().is_some_and(|code| code != 0);
        if !is_failure || !errors.contains(expected) || errors.lines().count() != 1 {
            told.push(format!("{redirection}: {:?}, {errors}", output.status));
        }
    }
    for redirection in [">/dev/null", "1<>/dev/null", "| true"] {
        let output = through_shell(words, redirection);
        if !output.status.success() || !output.stderr.is_empty() {
            told.push(format!("{redirection}: {:?}, {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    told
}

#[test]
fn failed_output_is_an_error() {
    check_rows(COMMANDS, |words| words.join(" "), |words| complaints(words));
}

#[test]
fn a_closed_pipe_ends_a_command_silently() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    for words in COMMANDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg0(words[0]).args(words[1..].iter().map(|word| match *word {
            "IMAGE" => demo(),
            word => word.into(),
        }));
        command.stdin(Stdio::null()).stdout(writer.try_clone().expect("a copy")).stderr(Stdio::piped());
        let output = command.output().expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    }
}

#[test]
fn extraction_succeeds_although_stdout_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["extract", "--quiet"]).arg(demo()).arg("-C").arg(folder.path().join("target"));
    let status = command.stdout(File::create("/dev/full").expect("it is there")).status().expect("it runs");
    assert!(status.success());
    assert!(fs::exists(folder.path().join(Path::new("target/README.txt"))).expect("looked for"));
}
