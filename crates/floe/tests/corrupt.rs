//! Corrupted images end in named errors or data, soon, and in bounded memory.

mod support;

use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use floe::{Attr, EngineOptions, FileType, Image, OpenOptions, SeekTarget};
use floe_testkit::{BoundedRun, check_rows, corpus::Corpus, run_bounded};

/// How long one image may take.
const TIME_MAX: Duration = Duration::from_secs(20);

/// How much memory a reader may take beside the budget of its block cache.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// What the child process says when it has tried everything.
const TRIED: &str = "tried everything";

/// Names the image to the child process.
const IMAGE_VARIABLE: &str = "FLOE_CORRUPT_IMAGE";

#[test]
fn the_library_survives_corrupt_images() {
    let corpus = Corpus::locate_or_fixtures();
    let program = env::current_exe().expect("this program");
    check_rows(
        &support::corrupt_images(&corpus),
        |image| image.name.clone(),
        |image| {
            let path = corpus.materialise_corrupt(image);
            let mut command = Command::new(&program);
            command.args(["--exact", "child", "--ignored", "--nocapture"]).env(IMAGE_VARIABLE, path);
            let run = run_bounded(&mut command, TIME_MAX).expect("it runs");
            let mut told = complaints(&run);
            if !run.status.success() {
                told.push(format!("{}: {}", run.status, run.stderr));
            }
            // An image that cannot be opened is told too: what says nothing was not tried.
            if !String::from_utf8_lossy(&run.stdout).contains(TRIED) {
                told.push("was not tried".to_owned());
            }
            told
        },
    );
}

/// What no image may cause, whatever the program says of it.
fn complaints(run: &BoundedRun) -> Vec<String> {
    let bound = EngineOptions::default().cache_bytes + MEMORY_BYTES_MAX;
    let mut told = Vec::new();
    if run.is_timed_out {
        told.push(format!("takes more than {TIME_MAX:?}"));
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

/// Asks for all there is, and goes on after errors.
fn read_all(path: &Path) {
    /// How many inodes are looked at: more than any image here has.
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
        // What was read is left to the parent process to judge.
        assert!(started.elapsed() < TIME_MAX, "the walk does not end");
    }
}

fn read_inode(image: &Image, attr: &Attr) {
    /// How much of each end of a large file is read.
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
