//! A standard output or standard error that cannot be written.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::check_rows;

use crate::support::program::{demo, run, within};

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

#[test]
fn a_check_keeps_its_verdict_although_its_reader_has_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken");
    let mut bytes = fs::read(demo()).expect("the demonstration image");
    bytes[1024 + 64] ^= 0xff;
    fs::write(&broken, bytes).expect("written");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let full = File::create("/dev/full").expect("it is there");
    let gone = || Stdio::from(writer.try_clone().expect("a copy"));
    for (image, options, stdout, expected) in [
        (&broken, &[][..], gone(), 4),
        (&broken, &["--json"], gone(), 4),
        (&broken, &[], full.try_clone().expect("a copy").into(), 4),
        (&demo(), &[], gone(), 0),
        (&demo(), &[], full.into(), 8),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        let status = command.arg("check").args(options).arg(image).stdout(stdout).stderr(Stdio::null()).status();
        assert_eq!(status.expect("it runs").code(), Some(expected), "{image:?} {options:?}");
    }
}

#[test]
fn a_failing_standard_error_changes_no_result() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let in_the_way = tempfile::tempdir().expect("a folder");
    fs::write(in_the_way.path().join("README.txt"), "old").expect("written");
    let target = in_the_way.path().to_str().expect("a plain path");
    let extract = format!("--extract={target}");
    for words in [&["floe", "extract", "IMAGE", "-C", target][..], &["fsck.erofs", &extract, "IMAGE"]] {
        for stderr in
            [File::create("/dev/full").expect("it is there").into(), Stdio::from(writer.try_clone().expect("a copy"))]
        {
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            command.arg0(words[0]).args(words[1..].iter().map(|word| match *word {
                "IMAGE" => demo(),
                word => word.into(),
            }));
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().expect("it runs");
            let status = within(move || child.wait());
            assert_eq!(status.expect("it ends").code(), Some(1), "{words:?}");
        }
    }
    assert_eq!(fs::read(in_the_way.path().join("README.txt")).expect("there"), b"old");
}
