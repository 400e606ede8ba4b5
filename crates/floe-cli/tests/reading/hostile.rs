//! Small images that claim much data: the program uses time and memory according to their actual size.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use floe_testkit::wait_until_caught;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    hostile_erofs,
    hostile_squashfs::{self, Squashfs},
    program::{Running, floe, run, told},
};

/// The address space limit in KiB for each command: enough for a debug build, but not for what the images claim.
const LIMIT_KIB: u64 = 1_200_000;

/// An image in its own folder.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new(image: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("image"), image).expect("written");
        Self { folder }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// The program with a limit on its address space. `IMAGE` and `TARGET` stand for the image and a new directory.
    fn command(&self, limit_kib: u64, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v \"$1\" && shift && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_floe")]);
        command.arg(limit_kib.to_string());
        command.args(arguments.iter().map(|argument| match *argument {
            "IMAGE" => self.image().into_os_string(),
            "TARGET" => self.folder.path().join("target").into_os_string(),
            other => other.into(),
        }));
        command
    }
}

/// The expected end of a command: its exit code, and its messages on either stream.
type Expected = (i32, &'static str);

fn check(name: &str, image: &[u8], rows: &[(&[&str], Expected)]) {
    let scene = Scene::new(image);
    for (arguments, (code, said)) in rows {
        let output = run(&mut scene.command(LIMIT_KIB, arguments));
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &told(&output).1;
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        assert_eq!(output.status.code(), Some(*code), "{name}: {arguments:?}: {tail:?}");
        assert!(text.contains(said), "{name}: {arguments:?}: {tail:?} where {said:?} is expected");
    }
}

#[test]
fn a_hole_of_a_petabyte_is_checked_at_once() {
    let image = hostile_erofs::with_hole(1 << 50);
    check("hole", &image, &[(&["check", "IMAGE"], (0, "no faults")), (&["extract", "IMAGE", "-C", "TARGET"], (1, ""))]);
}

#[test]
fn fsck_erofs_skips_holes_and_ends_soon_after_a_signal() {
    let scene = Scene::new(&hostile_erofs::with_hole(1 << 50));
    let command = |scene: &Scene| {
        let mut command = floe();
        command.arg0("fsck.erofs").args(["--path=/", "--extract"]).arg(scene.image());
        command
    };
    assert_eq!(told(&run(&mut command(&scene))), (Some(0), String::new()));
    // 160 GB to read.
    let scene = Scene::new(&hostile_erofs::with_overlapping_files(20_000, 2048));
    let running = Running::start(&mut command(&scene));
    wait_until_caught(running.id(), Signal::TERM);
    running.signal(Signal::TERM);
    let (code, errors) = running.end();
    assert_eq!((code, errors.as_str()), (Some(32), "<E> erofs: interrupted\n"));
}

#[test]
fn findings_take_time_for_each_and_not_for_each_pair() {
    let rows: &[(&[&str], Expected)] = &[(&["check", "IMAGE"], (0, "120,000 warnings"))];
    check("wrong link counts", &hostile_erofs::with_wrong_link_counts(120_000), rows);
}

#[test]
fn bytes_that_many_files_claim_are_read_once() {
    let rows: &[(&[&str], Expected)] = &[(&["check", "IMAGE"], (4, "8.00 MiB of data from 8.00 MiB"))];
    check("overlapping files", &hostile_erofs::with_overlapping_files(20_000, 2048), rows);
}

#[test]
fn directories_do_not_share_their_content() {
    let image = hostile_erofs::with_shared_directories(4000, 40_000);
    let check_row: (&[&str], Expected) = (&["check", "IMAGE"], (4, "directory shares the content of another one"));
    let list_row: (&[&str], Expected) = (&["ls", "-R", "IMAGE"], (1, "more entries than the image has room for"));
    check("erofs", &image, &[check_row, list_row]);
    let image = Squashfs::with_shared_listings(8000, 10_000);
    let check_row: (&[&str], Expected) = (&["check", "IMAGE"], (4, "directory shares its listing"));
    let extract: &[&str] = &["extract", "IMAGE", "-C", "TARGET"];
    let rows = [check_row, list_row, (extract, (1, "more entries than the image has room for"))];
    check("squashfs", &image, &rows);
}

#[test]
fn the_paths_of_a_deep_tree_take_little_memory() {
    let rows: [(&[&str], Expected); 2] = [
        (&["dump", "--statistics", "IMAGE"], (0, "total file count:\t\t151001\n")),
        (&["dump", "--nid", "1002", "IMAGE"], (0, "NID: 1002 ")),
    ];
    check("deep tree", &hostile_erofs::with_deep_tree(1000, 150, 200), &rows);
}

#[test]
fn attributes_are_read_once_and_within_limits() {
    for (name, count, name_len, value_len, rule) in [
        ("too many names", 10_000, 8, 1, "attribute names exceed 64 KiB"),
        ("too long values", 5000, 4, 65_536, "attribute values exceed 16 MiB"),
    ] {
        let image = Squashfs::with_attributes(count, name_len, value_len);
        let rows: [(&[&str], Expected); 4] = [
            (&["stat", "--json", "IMAGE", "/f"], (1, rule)),
            (&["stat", "IMAGE", "/f"], (1, rule)),
            (&["extract", "IMAGE", "-C", "TARGET"], (1, rule)),
            (&["check", "IMAGE"], (4, rule)),
        ];
        check(name, &image, &rows);
    }
}

#[test]
fn skipped_attributes_count_in_the_limit_of_values() {
    // No prefix has number 9, so these attributes are not shown.
    let image = Squashfs::with_values(&[(9, 65_536); 260]);
    let rule = "attribute values exceed 16 MiB";
    check("skipped values", &image, &[(&["stat", "IMAGE", "/f"], (1, rule)), (&["check", "IMAGE"], (4, rule))]);
    let image = Squashfs::with_values(&[(9, 65_536), (0, 3)]);
    check("one skipped value", &image, &[(&["stat", "IMAGE", "/f"], (0, "user.0001"))]);
}

#[test]
fn faults_in_one_place_do_not_hide_the_rest() {
    // With each directory and its file, more entries than a walk permits to any image.
    let mut image = Squashfs::with_directories(40_000, 0);
    for block in [0, 50] {
        hostile_squashfs::damage_listings(&mut image, block);
    }
    let rows: &[(&[&str], Expected)] = &[
        (&["ls", "-R", "IMAGE"], (1, "/w000000: corrupt image: ")),
        (&["ls", "-R", "IMAGE"], (1, "/w039999:\nf\n")),
        (&["check", "IMAGE"], (4, "/w000000: ")),
        (&["check", "IMAGE"], (4, "/w019700: ")),
    ];
    check("damaged listings", &image, rows);
}

#[test]
fn a_check_ends_at_once_where_it_is_cancelled() {
    for (name, image) in
        [("erofs", hostile_erofs::with_wrong_link_counts(5000)), ("squashfs", Squashfs::with_wrong_link_counts(5000))]
    {
        let scene = Scene::new(&image);
        let (cancel, told_count) = (AtomicBool::new(false), AtomicUsize::new(0));
        // The fault is found only in the last stage, after the walk of the tree.
        let tell = |_: &floe::Finding| {
            if told_count.fetch_add(1, Relaxed) == 9 {
                cancel.store(true, Relaxed);
            }
        };
        let options = floe::CheckOptions { jobs: 1, data: true };
        let summary = floe::check(&scene.image(), &floe::OpenOptions::default(), &options, &tell, &cancel);
        assert!(summary.expect("it is read").is_cancelled, "{name}");
        assert_eq!(told_count.into_inner(), 10, "{name}");
    }
}

#[test]
fn refused_memory_is_an_error_and_no_abort() {
    let demo = crate::support::program::demo();
    let image = fs::read(demo).expect("the demonstration image");
    let scene = Scene::new(&image);
    let mut was_refused = false;
    let mut was_enough = false;
    // From just enough to load the program to enough for its work.
    let loads = |limit_kib: &u64| scene.command(*limit_kib, &["--version"]).output().expect("a shell").status.success();
    let loaded_kib = (10_000..400_000).step_by(500).find(loads).expect("the program can be loaded");
    let limits = (loaded_kib..loaded_kib + 14_000).step_by(500);
    for limit_kib in limits.chain((loaded_kib + 14_000..loaded_kib + 200_000).step_by(24_000)) {
        for arguments in [
            &["check", "--jobs", "32", "IMAGE"][..],
            &["stat", "--json", "IMAGE", "/README.txt"],
            &["ls", "-lR", "IMAGE"],
            &["dump", "--statistics", "IMAGE"],
            &["extract", "--jobs", "32", "--force", "IMAGE", "-C", "TARGET"],
        ] {
            let output = run(scene.command(limit_kib, arguments).env_remove("RUST_BACKTRACE"));
            let (code, complaint) = told(&output);
            match code {
                Some(0) => was_enough = true,
                Some(1 | 2 | 3 | 8) => {
                    was_refused = true;
                    assert!(!complaint.trim().is_empty(), "{limit_kib} {arguments:?}: a silent failure");
                    // Extraction goes on with the next file, and has a line for each that it cannot write.
                    let lines_max = if arguments[0] == "extract" { 64 } else { 2 };
                    assert!(complaint.lines().count() <= lines_max, "{limit_kib} {arguments:?}: {complaint}");
                }
                other => panic!("{limit_kib} {arguments:?}: {other:?} {complaint}"),
            }
        }
    }
    assert!(was_refused && was_enough, "one limit is too low and one is enough");
}
