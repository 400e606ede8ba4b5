//! Extraction at its limits: few open files, threads that panic, hard links that the target cannot have.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    panic,
    path::Path,
    process::Command,
    sync::{Mutex, atomic::AtomicBool},
};

use floe::{ExtractEvent, ExtractOptions, Image, OpenOptions, Parts};
use floe_testkit::{
    peer,
    skip::{self, Need},
};
use tempfile::TempDir;

use crate::support::{
    hostile_squashfs::Squashfs,
    program::{floe, run, told, within},
};

const WIDE: u32 = 6000;
const DEEP: u32 = 2000;

/// The number of paths below a directory of each type.
fn count(directory: &Path, file_type: &str) -> usize {
    // The paths are too long for calls that take a whole path.
    let arguments = ["-mindepth", "1", "-type", file_type, "-print0"];
    let found = Command::new("find").arg(directory).args(arguments).output().expect("find runs");
    found.stdout.iter().filter(|byte| **byte == 0).count()
}

#[test]
fn all_is_extracted_with_few_descriptors() {
    let memory = Path::new("/dev/shm");
    let scratch = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new().prefix("floe-extraction-").tempdir_in(scratch).expect("a scratch folder");
    let image = folder.path().join("image");
    fs::write(&image, Squashfs::with_directories(WIDE, DEEP)).expect("written");
    for (limit, jobs) in [(1024, 32), (64, 32), (64, 1), (24, 8)] {
        let target = folder.path().join("target");
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_floe")]);
        command.arg(limit.to_string()).args(["extract", "--jobs"]).arg(jobs.to_string());
        let output = command.arg(&image).arg("-C").arg(&target).output().expect("floe runs");
        let found = (count(&target, "d"), count(&target, "f"));
        // The standard library needs a descriptor for each level.
        assert!(Command::new("rm").arg("-rf").arg(&target).status().expect("rm runs").success());
        assert_eq!(told(&output), (Some(0), String::new()), "{limit} descriptors, {jobs} jobs");
        let expected = (WIDE + DEEP) as usize;
        assert_eq!(found, (expected, expected), "{limit} descriptors, {jobs} jobs");
    }
}

#[test]
fn many_names_and_deep_trees_take_time_for_each() {
    let folder = tempfile::tempdir_in(crate::support::scratch(256 << 20)).expect("a scratch folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("image"), Squashfs::with_directories(WIDE, DEEP)).expect("written");
    // With the names that exclude, each name of the image would be compared 100,000 times.
    let excluded: String = (0..100_000).map(|number| format!("w{:06}\n", number * 2)).collect();
    fs::write(at("excluded"), excluded).expect("written");
    let mut command = floe();
    command.arg0("unsquashfs").args(["-n", "-q", "-exclude-file"]).arg(at("excluded"));
    let output = run(command.arg("-d").arg(at("target")).arg(at("image")));
    let found = (count(&at("target"), "d"), count(&at("target"), "f"));
    assert!(Command::new("rm").arg("-rf").arg(at("target")).status().expect("rm runs").success());
    assert_eq!(told(&output), (Some(0), String::new()));
    let expected = (WIDE / 2 + DEEP) as usize;
    assert_eq!(found, (expected, expected));
}

#[test]
fn an_extraction_ends_if_its_threads_panic() {
    let folder = tempfile::tempdir_in(crate::support::scratch(256 << 20)).expect("a scratch folder");
    let (path, target) = (folder.path().join("image"), folder.path().join("target"));
    // More than the tasks that may wait for a thread have.
    fs::write(&path, Squashfs::with_directories(20_000, 1)).expect("written");
    let image = Image::open(&path, &OpenOptions::default()).expect("an image");
    let extracted = within(move || {
        let tell = |event: ExtractEvent<'_>| assert!(!matches!(event, ExtractEvent::Made), "the report fails");
        let options = ExtractOptions { jobs: 2, ..ExtractOptions::default() };
        let extract = panic::AssertUnwindSafe(|| {
            floe::extract(&image, Parts::All, &target, &options, &tell, &AtomicBool::new(false)).map(drop)
        });
        panic::catch_unwind(extract).is_ok()
    });
    assert!(!extracted);
}

/// So many blocks that one thread still looks for data when the first block has failed in another one.
const BLOCKS: u64 = 1 << 18;

#[test]
fn a_file_that_fails_in_two_threads_is_one_failure() {
    let folder = tempfile::tempdir_in(crate::support::scratch(256 << 20)).expect("a scratch folder");
    let (path, target) = (folder.path().join("image"), folder.path().join("target"));
    fs::write(&path, Squashfs::with_faults_at_both_ends(BLOCKS)).expect("written");
    let image = Image::open(&path, &OpenOptions::default()).expect("an image");
    let options = ExtractOptions { jobs: 2, ..ExtractOptions::default() };
    for _ in 0..5 {
        let told = Mutex::new(Vec::new());
        let tell = |event: ExtractEvent<'_>| {
            if let ExtractEvent::Warning(warning) = event {
                told.lock().expect("no panic while held").push(warning.cause.to_string());
            }
        };
        let summary = floe::extract(&image, Parts::All, &target, &options, &tell, &AtomicBool::new(false));
        let told = told.into_inner().expect("no panic while held");
        assert_eq!((summary.expect("extracted").failures, told.len()), (1, 1), "{told:?}");
        assert!(!target.join("f").exists());
    }
}

/// Runs a command in a mount namespace of its own, after it mounted file systems in `target`: a tmpfs at `m`, and `b` at
/// itself. Then prints the digest, the inode and the number of links of each file.
const WITH_MOUNTS: &str = "mkdir -p target/m target/b && mount -t tmpfs none target/m && mount --bind target/b target/b || exit 77; \
     \"$@\"; code=$?; cd target && for name in a b/1 b/2 m/1 m/2 z; do \
     echo $name $(sha256sum <$name) $(stat -c '%i %h' $name); done; stat -c '%n %F %h' m/link z-link; exit $code";

/// Makes `image` and `image.sqfs` of a tree in which all names of a file, and both of a link, belong together.
fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let tree = folder.path().join("tree");
    for directory in ["b", "m"] {
        fs::create_dir_all(tree.join(directory)).expect("made");
    }
    // Large enough to be written in parts.
    let content: Vec<u8> = (0..20_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 28) as u8).collect();
    fs::write(tree.join("a"), content).expect("written");
    for name in ["b/1", "b/2", "m/1", "m/2", "z"] {
        fs::hard_link(tree.join("a"), tree.join(name)).expect("linked");
    }
    symlink("a", tree.join("m/link")).expect("linked");
    fs::hard_link(tree.join("m/link"), tree.join("z-link")).expect("linked");
    let built = run(floe().args(["mkfs", "-q", "image", "tree"]).current_dir(folder.path()));
    assert_eq!(told(&built), (Some(0), String::new()));
    let mut command = Command::new(peer("mksquashfs").expect("it was asked for"));
    let made = command.args(["tree", "image.sqfs", "-quiet", "-no-progress"]).current_dir(folder.path()).output();
    assert!(made.expect("mksquashfs runs").status.success());
    folder
}

#[test]
fn hard_links_across_mounts_become_copies() {
    if !skip::ready(&[Need::Root, Need::Peer("mksquashfs")]) {
        return;
    }
    let folder = scene();
    let sum = Command::new("sha256sum").arg(folder.path().join("tree/a")).output().expect("it runs");
    let sum = String::from_utf8_lossy(&sum.stdout).split_whitespace().next().expect("a digest").to_owned();
    for (program, arguments, code, said) in [
        (
            "floe",
            &["extract", "image", "-C", "target"][..],
            0,
            "floe: copied, because the target cannot have the hard links: 3 files\n",
        ),
        ("floe", &["extract", "--strict", "-q", "image", "-C", "target"], 1, "floe: copied, because"),
        ("fsck.erofs", &["--extract=target", "image"], 0, "<W> erofs: copied instead of linked: "),
        (
            "unsquashfs",
            &["-f", "-d", "target", "image.sqfs"],
            0,
            "target/m/1 is a copy instead of a hard link, because ",
        ),
        (
            "unsquashfs",
            &["-f", "-strict-errors", "-n", "-d", "target", "image.sqfs"],
            1,
            "FATAL ERROR: failed to make a hard link",
        ),
    ] {
        let _ = fs::remove_dir_all(folder.path().join("target"));
        // The program goes by its name, which a link has.
        let link = folder.path().join(program);
        let _ = symlink(env!("CARGO_BIN_EXE_floe"), &link);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", WITH_MOUNTS, "sh"]).arg(&link).args(arguments).current_dir(folder.path());
        let output = command.output().expect("unshare runs");
        let (printed, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.code() == Some(77) {
            return skip::skipped("no file system can be mounted here");
        }
        assert_eq!(output.status.code(), Some(code), "{program}: {complaints}");
        assert!(complaints.contains(said), "{program}: {complaints}");
        let rows = |name: &str| {
            let line = printed.lines().find(|line| line.starts_with(&format!("{name} "))).expect("listed");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        for name in ["a", "b/1", "b/2", "m/1", "m/2", "z"] {
            assert_eq!(rows(name)[1], sum, "{program}: {name}");
        }
        // Within each file system, the names still belong together.
        for (names, links) in [(["a", "z"], "2"), (["b/1", "b/2"], "2"), (["m/1", "m/2"], "2")] {
            let [first, second] = names.map(|name| (rows(name)[3].clone(), rows(name)[4].clone()));
            assert_eq!(first, second, "{program}: {names:?}");
            assert_eq!(first.1, links, "{program}: {names:?}");
        }
        for name in ["m/link", "z-link"] {
            assert_eq!(rows(name)[1..], ["symbolic", "link", "1"], "{program}: {name}");
        }
    }
}

/// More names than a file can have on ext4.
const NAMES: usize = 65_100;

#[test]
fn names_beyond_the_limit_of_the_file_system_become_copies() {
    if !skip::ready(&[Need::Root, Need::Peer("mke2fs")]) {
        return;
    }
    let folder = tempfile::tempdir_in(crate::support::scratch(256 << 20)).expect("a scratch folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).expect("made");
    fs::write(at("tree/0"), "content").expect("written");
    for number in 1..NAMES {
        fs::hard_link(at("tree/0"), at("tree").join(number.to_string())).expect("linked");
    }
    let built = run(floe().args(["mkfs", "-q"]).arg(at("image")).arg(at("tree")));
    assert_eq!(told(&built), (Some(0), String::new()));
    fs::File::create(at("disk")).and_then(|disk| disk.set_len(64 << 20)).expect("made");
    let mut command = Command::new("mke2fs");
    assert!(
        command
            .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal"])
            .arg(at("disk"))
            .status()
            .expect("it runs")
            .success()
    );
    fs::create_dir(at("target")).expect("made");
    let script = "mount -o loop \"$1\" \"$2\" || exit 77; \"$3\" extract --quiet \"$4\" -C \"$2\"; code=$?; \
                  cd \"$2\" && stat -c '%h' * | sort -n | uniq -c; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args([at("disk"), at("target")]);
    let output = command.arg(env!("CARGO_BIN_EXE_floe")).arg(at("image")).output().expect("unshare runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) {
        return skip::skipped("no ext4 can be mounted here");
    }
    let said = "floe: copied, because the target cannot have the hard links: 1 files\n".to_owned();
    assert_eq!(told(&output), (Some(0), said));
    let rows = printed.lines().filter_map(|line| line.trim().split_once(' '));
    let found: Vec<(&str, &str)> = rows.filter(|(count, links)| count == links).collect();
    assert_eq!(found, [("100", "100"), ("65000", "65000")], "{printed}");
}
