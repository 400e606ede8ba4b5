//! The usage of drop-in programs, in which callers look for options, and the exit codes of wrong command lines.

use std::{os::unix::process::CommandExt, path::Path, process::Command};

use floe_testkit::{
    check_rows, peer,
    skip::{self, Need},
};

use crate::support::program::{demo, run};

/// What a program prints without arguments, on both streams together.
const WITHOUT_ARGUMENTS: [(&str, i32, &[&str]); 7] = [
    (
        "squashfuse",
        254,
        &["-o offset=", "-o subdir=", "-o notify_pipe=", "-o uid=", "-o gid=", "-o allow_other", "-f  "],
    ),
    (
        "squashfuse_ll",
        2,
        &["-o offset=", "-o subdir=", "-o notify_pipe=", "-o timeout=", "-o uid=", "-o gid=", "-o max_threads", "-s  "],
    ),
    ("erofsfuse", 1, &["--offset=#", "--device=#", "--dbglevel=#", "-o clone_fd", "-d   -o debug"]),
    ("mkfs.erofs", 1, &["missing argument: FILE", "--help"]),
    ("fsck.erofs", 1, &["missing argument: IMAGE", "--help"]),
    ("dump.erofs", 234, &["missing argument: IMAGE", "--help"]),
    ("unsquashfs", 1, &["no input filesystem", "SYNTAX: unsquashfs [OPTIONS] FILESYSTEM", "-d[est]", "-f[orce]"]),
];

/// Command lines that show the usage or are wrong.
const COMMAND_LINES: [&[&str]; 8] = [
    &[],
    &["-h"],
    &["--help"],
    &["--no-such-option"],
    &["-Z"],
    &["/nonexistent/image"],
    &["IMAGE", "/", "more"],
    &["-o"],
];

fn called(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0(name).args(arguments);
    command
}

#[test]
fn the_usage_names_the_options_that_callers_look_for() {
    for (name, code, expected) in WITHOUT_ARGUMENTS {
        let output = run(&mut called(name, &[]));
        let said = String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{name}: {said}");
        for word in expected {
            assert!(said.contains(word), "{name} does not print {word}: {said}");
        }
    }
    // containerd decides by this option whether layers can be converted.
    let help = run(&mut called("mkfs.erofs", &["--help"]));
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--tar="), "{help:?}");
}

#[test]
fn exit_codes_of_wrong_command_lines_are_those_of_the_originals() {
    let image = demo();
    let image = image.to_str().expect("text");
    let rows: Vec<(&str, &[&str])> = WITHOUT_ARGUMENTS
        .iter()
        .filter(|(name, ..)| skip::ready(&[Need::Peer(name)]))
        .flat_map(|(name, ..)| COMMAND_LINES.iter().map(move |arguments| (*name, *arguments)))
        // The original has only -help.
        .filter(|(name, arguments)| *name != "unsquashfs" || !matches!(arguments, ["--help"]))
        // squashfuse reports a missing mountpoint only after it has opened the image.
        .filter(|(name, arguments)| *name != "squashfuse" || arguments.len() != 1 || arguments[0].starts_with('-'))
        .collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(name, arguments)| {
            let arguments: Vec<&str> =
                arguments.iter().map(|word| word.replace("IMAGE", image).leak() as &str).collect();
            let code = |mut command: Command| run(command.current_dir(Path::new("/"))).status.code();
            let mut original = Command::new(peer(name).expect("the test needs it"));
            original.args(&arguments);
            let (expected, found) = (code(original), code(called(name, &arguments)));
            if found == expected { Vec::new() } else { vec![format!("{found:?} instead of {expected:?}")] }
        },
    );
}
