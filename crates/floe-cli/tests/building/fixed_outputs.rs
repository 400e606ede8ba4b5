//! Outputs of builds that cannot be replaced by a new file, and directories with few rights.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::{Image, OpenOptions};
use floe_testkit::{
    Random, copy_program,
    skip::{self, Need},
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::program::said;

const AS_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
/// The command lines of both programs, before the image and the source.
const PROGRAMS: [&str; 2] = ["./floe mkfs --quiet", "./mkfs.erofs --quiet"];

/// A folder with the programs, a tree in `source`, and a directory `out` that users may not change.
fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("ours");
    for program in ["floe", "mkfs.erofs"] {
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join(program));
    }
    fs::create_dir(folder.path().join("source")).expect("made");
    fs::create_dir(folder.path().join("out")).expect("made");
    fs::write(folder.path().join("source/text"), "some text\n".repeat(10_000)).expect("written");
    folder
}

/// Runs a script in its own mount namespace. `$AS_USER` runs a command as an ordinary user.
fn run(folder: &TempDir, script: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-e", "-c", script]).env("AS_USER", AS_USER);
    command.current_dir(folder.path()).stdin(Stdio::null()).output().expect("unshare runs")
}

/// Checks that a build succeeds, and that its only message is that it overwrites `output`, if it does.
fn check(folder: &TempDir, script: &str, overwritten: Option<&str>) {
    let output = run(folder, script);
    let said = said(&output);
    assert!(output.status.success(), "{script}: {}: {said}", output.status);
    match overwritten {
        Some(path) => assert!(
            said.lines().count() == 1
                && said.contains(&format!("{path} was overwritten, because it cannot be replaced")),
            "{script}: {said}"
        ),
        None => assert_eq!(said, "", "{script}"),
    }
}

/// The names of the image's root.
fn names(image: &Path) -> Vec<String> {
    let image = Image::open(image, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let entries = image.read_dir(image.root()).map(|entry| entry.expect("it can be read").name);
    entries.map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}

fn listed(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed").file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn a_mountpoint_is_overwritten() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    let image = folder.path().join("image");
    for program in PROGRAMS {
        // Once the earlier file is longer, once it is shorter.
        for earlier in [1_000_000, 10] {
            fs::write(&image, vec![7; earlier]).expect("written");
            fs::set_permissions(&image, Permissions::from_mode(0o640)).expect("ours");
            fs::write(folder.path().join("out/image"), "").expect("written");
            let script = format!("mount --bind image out/image; {program} out/image source");
            check(&folder, &script, Some("out/image"));
            assert_eq!(names(&image), ["text"], "{program}");
            assert!(fs::read(folder.path().join("out/image")).expect("below the mount").is_empty());
            assert_eq!(listed(&folder.path().join("out")), ["image"], "{program}");
            assert_eq!(fs::metadata(&image).expect("there").mode() & 0o777, 0o640);
            fs::rename(&image, folder.path().join("copied")).expect("renamed");
            check(&folder, &format!("{program} image source"), None);
            let [copied, renamed] = [&folder.path().join("copied"), &image].map(|path| fs::read(path).expect("read"));
            assert!(copied == renamed, "{program}: another image");
        }
    }
}

#[test]
fn a_full_file_system_keeps_a_mountpoint_unchanged() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    fs::create_dir(folder.path().join("small")).expect("made");
    let script = "mount -t tmpfs -o size=64k none small; echo earlier > small/image; touch out/image; \
        mount --bind small/image out/image; ./floe mkfs out/image source || code=$?; cat small/image; exit $code";
    let output = run(&folder, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "earlier\n", "{}", said(&output));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "floe: cannot write the image out/image: No space left on device (os error 28)\n");
}

#[test]
fn a_file_in_a_directory_that_accepts_no_files_is_overwritten() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    let out = folder.path().join("out");
    for (program, more, mode, flags) in [
        (PROGRAMS[0], "", 0o755, None),
        (PROGRAMS[1], "", 0o755, None),
        // These need temporary files.
        (PROGRAMS[0], "--compress zstd --fragments tails", 0o755, None),
        (PROGRAMS[0], "source.tar.gz", 0o755, None),
        // In a sticky directory, the file of another user cannot be replaced.
        (PROGRAMS[0], "", 0o1777, None),
        (PROGRAMS[0], "", 0o755, Some("ro")),
    ] {
        let case = format!("{program} {more} {mode:o} {flags:?}");
        fs::write(out.join("image"), "an earlier image").expect("written");
        fs::set_permissions(out.join("image"), Permissions::from_mode(0o666)).expect("ours");
        fs::set_permissions(&out, Permissions::from_mode(mode)).expect("ours");
        let (source, options) = if more.ends_with("gz") { (more, "") } else { ("source", more) };
        let prepare = match flags {
            None => "tar -czf source.tar.gz -C source .",
            // The directory is read-only, the file is not.
            Some(_) => {
                "cp out/image image; chmod 666 image; mount --bind out out; mount -o remount,bind,ro out; \
                 mount --bind image out/image"
            }
        };
        let script = format!("{prepare}; $AS_USER {program} {options} out/image {source}");
        check(&folder, &script, Some("out/image"));
        let written = if flags.is_some() { folder.path().join("image") } else { out.join("image") };
        assert_eq!(names(&written), ["text"], "{case}");
        assert_eq!(listed(&out), ["image"], "{case}");
    }
    // A file that may not be written is refused before the sources are read.
    fs::set_permissions(out.join("image"), Permissions::from_mode(0o644)).expect("ours");
    let before = fs::read(out.join("image")).expect("read");
    fs::set_permissions(&out, Permissions::from_mode(0o755)).expect("ours");
    let output = run(&folder, "$AS_USER ./floe mkfs out/image source");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "floe: cannot write to the image out/image: Permission denied (os error 13)\n");
    assert!(fs::read(out.join("image")).expect("read") == before);
}

#[test]
fn images_are_built_without_procfs() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    for program in PROGRAMS {
        for earlier in [false, true] {
            let script = format!("mount -t tmpfs none /proc; {program} out/image source");
            check(&folder, &script, None);
            assert_eq!(names(&folder.path().join("out/image")), ["text"], "{program}, {earlier}");
            assert_eq!(listed(&folder.path().join("out")), ["image"], "{program}, {earlier}");
        }
        fs::remove_file(folder.path().join("out/image")).expect("made");
    }
    let script = "mount -t tmpfs none /proc; ./floe mkfs --quiet out/image source --verity --compress zstd --dedupe \
        --fragments all";
    check(&folder, script, None);
    let script = "mount -t tmpfs none /proc; ./mkfs.erofs --quiet --chunksize=4096 --blobdev=out/blob out/image source";
    let output = run(&folder, script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(listed(&folder.path().join("out")), ["blob", "image"]);
}

#[test]
fn a_signal_removes_files_with_temporary_names() {
    if !skip::ready(&[Need::Root, Need::Signal(Signal::TERM)]) {
        return;
    }
    let folder = scene();
    fs::write(folder.path().join("source/noise"), Random::new(1).noise(40 << 20)).expect("written");
    let script = "mount -t tmpfs none /proc; ./floe mkfs --quiet out/image source --compress lzma,9 --jobs 1 & pid=$!; \
        until test \"$(ls -A out)\"; do sleep 0.02; done; ls -A out; kill -TERM $pid; wait $pid";
    let output = run(&folder, script);
    assert!(output.stdout.starts_with(b".image."), "{output:?}");
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert_eq!(said(&output), "floe: cancelled before the image was complete\n");
    assert_eq!(listed(&folder.path().join("out")), Vec::<String>::new());
}

#[test]
fn directories_need_not_be_readable() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    fs::set_permissions(folder.path().join("out"), Permissions::from_mode(0o733)).expect("ours");
    let blob = "./mkfs.erofs --quiet --chunksize=4096 --blobdev=out/blob";
    for program in [PROGRAMS[0], PROGRAMS[1], "./floe mkfs --quiet --verity", blob] {
        for round in 0..2 {
            let output = run(&folder, &format!("$AS_USER {program} out/image source"));
            assert!(output.status.success(), "{program}, {round}: {}", said(&output));
        }
    }
    assert_eq!(listed(&folder.path().join("out")), ["blob", "image"]);
}

#[test]
fn leftovers_of_killed_builds_are_not_in_the_way() {
    let folder = scene();
    // Programs in containers often have the same process id.
    for number in 0..200 {
        for pid in [1, std::process::id(), std::process::id() + 1] {
            fs::write(folder.path().join(format!("out/.image.{pid}-{number}")), "").expect("written");
        }
    }
    let build = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(["mkfs", "--quiet", "out/image", "source", "--verity"]).current_dir(folder.path());
        let output = command.output().expect("floe runs");
        assert!(output.status.success(), "{}", said(&output));
    };
    build();
    build();
    assert_eq!(listed(&folder.path().join("out")).len(), 602);
}
