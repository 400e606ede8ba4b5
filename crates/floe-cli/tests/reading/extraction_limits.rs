//! Extraction with a low limit on open files, and with threads that panic.

use std::{
    fs,
    os::unix::process::CommandExt,
    panic,
    path::Path,
    process::Command,
    sync::{Mutex, atomic::AtomicBool},
};

use floe::{ExtractEvent, ExtractOptions, Image, OpenOptions, Parts};

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
