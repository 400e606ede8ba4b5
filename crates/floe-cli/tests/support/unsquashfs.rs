//! unsquashfs and the original, side by side.

use std::{
    env,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    Versions,
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// Runs one of both with arguments in a folder.
pub(crate) type Program = fn(&[&str], &Path) -> Output;

const VERSION: Versions = Versions::Series("4.7");

/// Whether the test can run: it needs the originals, and root to extract owners.
#[must_use = "a test that lacks something must return"]
pub(crate) fn is_ready() -> bool {
    skip::ready(&[Need::Root, Need::PeerOf("unsquashfs", VERSION), Need::PeerOf("mksquashfs", VERSION)])
}

/// Makes `image` in a folder, of its directory `tree`.
pub(crate) fn make_image(folder: &Path) {
    let mut command = Command::new(peer("mksquashfs").expect("it was asked for"));
    let made = command.args(["tree", "image", "-quiet", "-no-progress"]).current_dir(folder).output().expect("it runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
}

pub(crate) fn ours(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("unsquashfs");
    run(command, arguments, folder)
}

pub(crate) fn theirs(arguments: &[&str], folder: &Path) -> Output {
    run(Command::new(peer("unsquashfs").expect("it was asked for")), arguments, folder)
}

fn run(mut command: Command, arguments: &[&str], folder: &Path) -> Output {
    command.args(arguments).current_dir(folder).env("TZ", "UTC").stdin(Stdio::null()).output().expect("it runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a program had nothing to complain about.
fn is_silent(output: &Output) -> bool {
    output.status.success() && output.stderr.is_empty()
}

/// The differences between what both print, their exit codes, and whether they complain.
pub(crate) fn differing_outputs(arguments: &[&str], folder: &Path) -> Vec<String> {
    let (ours, theirs) = (ours(arguments, folder), theirs(arguments, folder));
    // With an option that it refuses, the original prints its help.
    let is_same = ours.stdout == theirs.stdout || theirs.status.code() == Some(1) && ours.stdout.is_empty();
    if is_same && is_silent(&ours) == is_silent(&theirs) && ours.status.code() == theirs.status.code() {
        return Vec::new();
    }
    let of = |output: &Output| format!("{}: {}{}", output.status, text(&output.stderr), text(&output.stdout));
    vec![format!("{arguments:?}: {}instead of {}", of(&ours), of(&theirs))]
}

/// The differences between what both extract with these options and names into directories that do not exist, what they say
/// that they created, their exit codes, and whether they complain. Then calls `again` for each program with its arguments.
pub(crate) fn differing_extractions(
    options: &[&str],
    names: &[&str],
    folder: &Path,
    again: &mut dyn FnMut(Program, &[&str]),
) -> Vec<String> {
    let targets = tempfile::tempdir().expect("a folder for the targets");
    let extract = |(target, run): (&str, Program)| {
        let target = targets.path().join(target);
        let place = ["-n", "-d", target.to_str().expect("a plain path")];
        let arguments = [&place, options, &["image"], names].concat();
        let output = run(&arguments, folder);
        let tree = target.exists().then(|| walk::directory(&target, DirectoryWalk::default()).expect("readable"));
        again(run, &arguments);
        let created = text(&output.stdout).lines().filter(|line| line.starts_with("created ")).collect::<String>();
        ((output.status.code(), is_silent(&output), created), tree)
    };
    let [(our_end, our_tree), (end, tree)] = [("ours", ours as Program), ("theirs", theirs)].map(extract);
    let mut told = Vec::new();
    if our_end != end {
        told.push(format!("extracting: {our_end:?} instead of {end:?}"));
    }
    match (our_tree, tree) {
        (Some(ours), Some(theirs)) => told.extend(differing_trees(&theirs, &ours)),
        (None, None) => {}
        _ => told.push("only one made the target".to_owned()),
    }
    told
}

fn differing_trees(theirs: &Manifest, ours: &Manifest) -> Vec<String> {
    differences(theirs, ours, &Comparison::default())
}
