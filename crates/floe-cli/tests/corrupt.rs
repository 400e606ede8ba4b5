//! Corrupted images lead to errors that name the rule, or to data, within limits of time and memory.
//!
//! This is a separate test program, because the peak memory of a process is at least that of the process that started it.

mod support;

use std::{
    env,
    ffi::OsStr,
    fs,
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use floe::{Attr, CheckOptions, EngineOptions, FileType, Image, OpenOptions, SeekTarget, WalkEntry, WalkError};
use floe_testkit::{
    BoundedRun, check_rows,
    corpus::{Corpus, Format, Materialised},
    run_bounded,
    skip::{self, Need},
};
use support::Served;

/// The limit of CPU time for one image.
const CPU_TIME_MAX: Duration = Duration::from_secs(60);

/// The time after which a program is killed, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(300);

/// The memory limit of a reader beyond the budget of its block cache, in bytes.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// The space for extracting two corrupted images at a time, in bytes.
const EXTRACTED_BYTES_MAX: u64 = 1 << 30;

/// The number of bytes read of each file of a sound image.
const READ_BYTES_MAX: u64 = 64 << 20;

/// The output of the child process after it has tried everything.
const TRIED: &str = "tried everything";

/// The variable that names the image for the child process.
const IMAGE_VARIABLE: &str = "FLOE_CORRUPT_IMAGE";

#[test]
fn the_library_survives_corrupt_images() {
    let program = env::current_exe().expect("this program");
    check_images(|path| {
        let mut command = Command::new(&program);
        command.args(["--exact", "child", "--ignored", "--nocapture"]).env(IMAGE_VARIABLE, path);
        let run = run_bounded(&mut command, TIME_MAX).expect("it runs");
        let mut told = complaints(&run);
        if !run.status.success() {
            told.push(format!("{}: {}", run.status, run.stderr));
        }
        // Images that cannot be opened are reported too, so that no image is left out silently.
        if !String::from_utf8_lossy(&run.stdout).contains(TRIED) {
            told.push("was not tried".to_owned());
        }
        told
    });
}

#[test]
fn images_that_check_accepts_can_be_read_completely() {
    // The images of the corpus are included.
    check_images_of(&Corpus::fixtures(), |path| {
        let options = CheckOptions { jobs: 1, data: true };
        let summary = floe::check(path, &OpenOptions::default(), &options, &|_| {}, &AtomicBool::new(false));
        if !summary.is_ok_and(|summary| summary.errors == 0) {
            return Vec::new();
        }
        let image = match Image::open(path, &OpenOptions::default()) {
            Ok(image) => image,
            Err(error) => return vec![error.to_string()],
        };
        let mut buffer = vec![0; 128 << 10];
        let mut read = |entry: Result<WalkEntry, WalkError>| -> Result<(), String> {
            let attr = entry.map_err(|error| error.to_string())?.attr;
            // Larger files are mostly holes.
            for offset in (0..attr.size.min(READ_BYTES_MAX)).step_by(buffer.len()) {
                if attr.file_type == FileType::Regular {
                    image.read_at(attr.nid, offset, &mut buffer).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        };
        image.walk().filter_map(|entry| read(entry).err()).collect()
    });
}

#[test]
fn listing_and_extracting_corrupt_images_ends_in_errors_or_data() {
    check_images(|path| {
        let folder = tempfile::tempdir_in(support::scratch(EXTRACTED_BYTES_MAX)).expect("a folder");
        let mut told = Vec::new();
        let ls: &[&OsStr] = &["ls".as_ref(), "-lR".as_ref(), path.as_ref()];
        let target = folder.path().join("tree");
        let extract: &[&OsStr] =
            &["extract".as_ref(), "--quiet".as_ref(), path.as_ref(), "-C".as_ref(), target.as_ref()];
        for arguments in [ls, extract] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            let run = run_bounded(command.args(arguments), TIME_MAX).expect("floe runs");
            let complaints = complaints(&run).into_iter().chain(program_complaints(&run));
            told.extend(complaints.map(|line| format!("floe {}: {line}", arguments[0].display())));
        }
        let stray = fs::read_dir(folder.path()).expect("listed").count() > usize::from(target.exists());
        if stray {
            told.push("something was written beside the target".to_owned());
        }
        told
    });
}

#[test]
fn building_from_corrupt_images_ends_in_errors_or_an_image() {
    check_images(|path| {
        let folder = tempfile::tempdir_in(support::scratch(EXTRACTED_BYTES_MAX)).expect("a folder");
        let new = folder.path().join("new");
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(["mkfs", "--quiet", "--jobs=1", "--memory=8M"]).args([new.as_path(), path]);
        let run = run_bounded(&mut command, TIME_MAX).expect("floe runs");
        let mut told = complaints(&run);
        told.extend(program_complaints(&run));
        if run.status.success() != new.exists() {
            told.push(format!("{}, and there is an image: {}", run.status, new.exists()));
        }
        told
    });
}

#[test]
fn mounts_of_corrupt_images_give_errors_or_data() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    /// Reads everything: attributes, targets, and the first bytes of each file. The tools report failures.
    const READ_ALL: &str = r#"
        find "$0" -xdev -ls
        find "$0" -xdev -type f -exec head --quiet --bytes=4M {} + | wc -c
        exit 0
    "#;
    check_images(|path| {
        let image = Materialised::single(path, Format::Erofs);
        let served = match Served::new(&image, "fuse") {
            Ok(served) => served,
            Err(words) if words.contains("floe: ") && words.lines().count() == 1 => return Vec::new(),
            Err(words) => return vec![words],
        };
        let run = run_bounded(Command::new("sh").args(["-c", READ_ALL]).arg(served.path()), TIME_MAX);
        let mut told = Vec::new();
        if run.expect("sh runs").is_timed_out {
            told.push(format!("reading the mount takes more than {TIME_MAX:?}"));
        }
        if served.resident_bytes_max() > memory_bytes_max() {
            told.push(format!("the server takes {} MiB", served.resident_bytes_max() >> 20));
        }
        told.extend(served.end());
        told
    });
}

/// Runs a check on the file of each corrupted image.
fn check_images(check: impl Fn(&Path) -> Vec<String> + Sync) {
    check_images_of(&Corpus::locate_or_fixtures(), check);
}

fn check_images_of(corpus: &Corpus, check: impl Fn(&Path) -> Vec<String> + Sync) {
    check_rows(
        &support::corrupt_images(corpus),
        |image| image.name.clone(),
        |image| check(&corpus.materialise_corrupt(image)),
    );
}

/// The memory limit of a process: the budget of its block cache, and some more.
fn memory_bytes_max() -> u64 {
    EngineOptions::default().cache_bytes + MEMORY_BYTES_MAX
}

/// The faults of the program's end: a signal, an undocumented exit code, a failure without a message, or messages that are
/// not lines of its own.
fn program_complaints(run: &BoundedRun) -> Vec<String> {
    let mut told = Vec::new();
    match run.status.code() {
        Some(0) => {}
        Some(1 | 3) if !run.stderr.is_empty() => {}
        _ => told.push(format!("{}: {:?}", run.status, run.stderr)),
    }
    told.extend(run.stderr.lines().filter(|line| !line.starts_with("floe: ")).map(|line| format!("says {line:?}")));
    told
}

/// The faults that no image may cause, whatever the program prints.
fn complaints(run: &BoundedRun) -> Vec<String> {
    let bound = memory_bytes_max();
    let mut told = Vec::new();
    if run.is_timed_out || run.cpu > CPU_TIME_MAX {
        told.push(format!("takes {:?}, {:?} of a CPU", run.elapsed, run.cpu));
    }
    if run.stderr.contains("panicked at") {
        told.push(run.stderr.clone());
    }
    if run.resident_bytes_max > bound {
        told.push(format!("takes {} MiB; the most is {}", run.resident_bytes_max >> 20, bound >> 20));
    }
    told
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child() {
    if let Some(path) = env::var_os(IMAGE_VARIABLE) {
        read_all(Path::new(&path));
        println!("{TRIED}");
    }
}

/// Reads everything, and continues after errors.
fn read_all(path: &Path) {
    /// The maximum number of inodes examined: more than any image here has.
    const INODES_MAX: usize = 100_000;
    let image = match Image::open(path, &OpenOptions::default()) {
        Ok(image) => image,
        Err(error) => return one_line(&error.to_string()),
    };
    let started = Instant::now();
    for entry in image.walk().take(INODES_MAX) {
        match entry {
            Ok(entry) => read_inode(&image, &entry.attr),
            Err(error) => one_line(&error.to_string()),
        }
        // The parent process examines the bytes read.
        assert!(started.elapsed() < TIME_MAX, "the walk does not end");
    }
}

fn read_inode(image: &Image, attr: &Attr) {
    /// The number of bytes read at each end of a large file.
    const PART_BYTES: u64 = 4 << 20;
    const READ_BYTES: usize = 128 << 10;
    let file_system = image.file_system();
    for name in told(file_system.xattr_names(attr.nid)).unwrap_or_default() {
        told(file_system.xattr(attr.nid, &name));
    }
    match attr.file_type {
        FileType::Symlink => drop(told(file_system.read_link(attr.nid))),
        FileType::Directory => drop(told(file_system.lookup(attr.nid, b"no such name"))),
        FileType::Regular => {
            let parts = [0..attr.size.min(PART_BYTES), attr.size.saturating_sub(PART_BYTES)..attr.size];
            let mut buffer = vec![0; READ_BYTES];
            for part in parts {
                let mut position = part.start;
                while position < part.end {
                    told(image.read_at(attr.nid, position, &mut buffer));
                    position += READ_BYTES as u64;
                }
                told(file_system.seek(attr.nid, part.start, SeekTarget::Hole));
            }
        }
        _ => {}
    }
}

fn told<T>(outcome: floe_image::Result<T>) -> Option<T> {
    outcome.map_err(|error| one_line(&error.to_string())).ok()
}

fn one_line(words: &str) {
    assert!(!words.is_empty() && !words.contains('\n'), "not one line: {words:?}");
}
