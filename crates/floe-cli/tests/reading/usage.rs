//! Usage and documentation that is installed: options that callers look for, exit codes, manual pages, completions.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    Versions, check_rows, peer,
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

/// The series of the original whose exit codes are compared.
fn series_of(name: &str) -> &'static str {
    match name {
        "squashfuse" | "squashfuse_ll" => "0.5",
        "unsquashfs" => "4.7",
        _ => "1.9",
    }
}

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
        .filter(|(name, ..)| skip::ready(&[Need::PeerOf(name, Versions::Series(series_of(name)))]))
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

fn floe(arguments: &[&str]) -> Output {
    let output =
        Command::new(env!("CARGO_BIN_EXE_floe")).args(arguments).stdin(Stdio::null()).output().expect("floe runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The commands that `floe --help` lists.
fn commands() -> Vec<String> {
    let help = String::from_utf8(floe(&["--help"]).stdout).expect("text");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // The description of a command continues in lines that are indented further.
    let names = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_name_of_the_program_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a directory");
    floe(&["manual", directory.path().to_str().expect("text")]);
    let page = |name: &str| {
        let path = directory.path().join(format!("{name}.1"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let commands = commands();
    assert!(commands.len() >= 14, "{commands:?}");
    assert!(page("floe").contains(".SH NAME"));
    for command in &commands {
        assert!(page(&format!("floe-{command}")).contains(".SH SYNOPSIS"), "{command}");
    }
    let helper = fs::read_to_string(directory.path().join("mount.floe.8")).expect("a page");
    assert!(helper.contains("/etc/fstab") && helper.contains("read\\-memory=SIZE"), "{helper}");
    let alias = fs::read_to_string(directory.path().join("mount.fuse.floe.8")).expect("a page");
    assert_eq!(alias, ".so man8/mount.floe.8\n");
    for (name, option) in [
        ("floe-mount", "\\-\\-daemon"),
        ("mkfs.erofs", "dictsize"),
        ("fsck.erofs", "\\-\\-extract"),
        ("dump.erofs", "\\-\\-nid"),
        ("erofsfuse", "\\-\\-offset"),
        ("squashfuse", "notify_pipe"),
        ("squashfuse_ll", "notify_pipe"),
        ("unsquashfs", "\\-pseudo\\-file"),
        ("mksquashfs", "\\-keep\\-as\\-directory"),
        ("sqfstar", "\\-keep\\-as\\-directory"),
        ("sqfs2tar", "\\-\\-root\\-becomes"),
        ("tar2sqfs", "\\-\\-comp\\-extra"),
    ] {
        assert!(page(name).contains(option), "{name}.1 does not say {option}");
    }
}

#[test]
fn the_documentation_lists_every_command() {
    for page in ["docs/commands.md", "README.md"] {
        let text = fs::read_to_string(floe_testkit::workspace_root().join(page)).expect("a page");
        let missing: Vec<_> =
            commands().into_iter().filter(|command| !text.contains(&format!("`floe {command}"))).collect();
        assert!(missing.is_empty(), "{page}: {missing:?}");
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("floe.bash");
    fs::write(&script, floe(&["completions", "bash"]).stdout).expect("the script");
    for (words, expected) in
        [("floe um", "umount"), ("floe mount --dae", "--daemon"), ("floe mkfs --com", "--compress")]
    {
        let last = words.rsplit(' ').next().expect("a word");
        let asked = format!(
            "source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _floe floe {last} mount; echo \"${{COMPREPLY[@]}}\"",
            script = script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &asked]).output().expect("bash runs");
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.split_whitespace().any(|word| word == expected), "{words}: {answer}");
    }
    for (name, word, expected) in [
        ("mkfs.erofs", "--all-r", "--all-root"),
        ("unsquashfs", "-de", "-dest"),
        ("fsck.erofs", "--no-x", "--no-xattrs"),
    ] {
        fs::write(&script, floe(&["completions", "bash", name]).stdout).expect("the script");
        let function = format!("_floe_{}", name.replace('.', "_"));
        let asked = format!("source {}; {function} {name} {word} {name}; echo \"${{COMPREPLY[@]}}\"", script.display());
        let output = Command::new("bash").args(["--norc", "-c", &asked]).output().expect("bash runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{name} {word}");
        for shell in ["zsh", "fish"] {
            assert!(!floe(&["completions", shell, name]).stdout.is_empty(), "{shell} {name}");
        }
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(!floe(&["completions", shell]).stdout.is_empty(), "{shell}");
    }
}
