//! A disk that becomes full at any point: files are complete or missing, and each failure has a one-line message.

use std::{
    ffi::CString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use floe_testkit::{
    BoundedRun, Random, run_bounded,
    skip::{self, Need},
};
use rustix::{
    mount::{MountFlags, UnmountFlags},
    process::{Pid, Signal, kill_process},
};

use crate::support::program::{PATIENCE, floe};

/// The number of disk sizes between nothing and enough.
const STEPS: u64 = 12;

const KIB: u64 = 1 << 10;

/// A small tmpfs. Unmounted when dropped.
pub(crate) struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    pub(crate) fn new(options: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = CString::new(options).expect("no zero byte");
        rustix::mount::mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), options.as_c_str())
            .expect("a tmpfs");
        Self { directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn names(&self) -> Vec<PathBuf> {
        fs::read_dir(self.directory.path()).expect("listed").map(|entry| entry.expect("listed").path()).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

/// A tree of text, random data and many small files.
fn tree(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    let mut random = Random::new(7);
    fs::create_dir_all(tree.join("small")).expect("made");
    fs::write(tree.join("text"), random.text(1 << 20)).expect("written");
    fs::write(tree.join("noise"), random.noise(3 << 20)).expect("written");
    for number in 0..200 {
        fs::write(tree.join(format!("small/{number}")), random.text(100 + number * 20)).expect("written");
    }
    tree
}

fn run(command: &mut Command) -> BoundedRun {
    let run = run_bounded(command, PATIENCE * 4).expect("floe runs");
    assert!(!run.is_timed_out, "it ends: {command:?}");
    run
}

/// Checks that the messages of a failed run are lines of its own, and that one of them says that the disk is full.
fn assert_full(run: &BoundedRun, what: &str) {
    assert_eq!(run.status.code(), Some(1), "{what}: {} {}", run.status, run.stderr);
    assert!(run.stderr.contains("No space left on device"), "{what}: {:?}", run.stderr);
    assert!(run.stderr.lines().all(|line| line.starts_with("floe: ")), "{what}: {:?}", run.stderr);
}

#[test]
fn an_image_that_does_not_fit_leaves_nothing_behind() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = tree(folder.path());
    let archive = folder.path().join("tree.tar.gz");
    let packed = Command::new("tar").arg("-C").arg(&source).arg("-czf").arg(&archive).arg(".").status();
    assert!(packed.expect("tar runs").success());
    for (options, source) in [
        (&[][..], &source),
        (&["-z", "lz4"], &source),
        (&["-z", "zstd", "-C64k", "--fragments=tails"], &source),
        (&["-z", "lz4"], &archive),
    ] {
        let mkfs = |image: &Path| run(floe().arg("mkfs").args(options).arg(image).arg(source));
        let roomy = Disk::new("size=64m");
        let reference = roomy.path("image");
        let made = mkfs(&reference);
        assert!(made.status.success(), "{options:?}: {}", made.stderr);
        let expected = fs::read(&reference).expect("the image");
        let enough = (expected.len() as u64).div_ceil(KIB).next_multiple_of(4);
        // Archives are first unpacked beside the image, and so are the tails of files.
        let needs_scratch = source == &archive || options.contains(&"--fragments=tails");
        let most = if needs_scratch { enough + 8 * KIB } else { enough + 64 };
        let mut outcomes = [0, 0];
        for step in 0..=STEPS {
            let size = (most * step / STEPS).next_multiple_of(4).max(4);
            let disk = Disk::new(&format!("size={size}k"));
            let image = disk.path("image");
            let made = mkfs(&image);
            let what = format!("{options:?} of {} on {size} KiB", source.display());
            if made.status.success() {
                outcomes[1] += 1;
                assert!(fs::read(&image).expect("the image") == expected, "{what}: the image differs");
            } else {
                outcomes[0] += 1;
                assert_full(&made, &what);
                assert_eq!(made.stderr.lines().count(), 1, "{what}: {:?}", made.stderr);
                assert!(made.stderr.contains(image.to_str().expect("text")), "{what}: {:?}", made.stderr);
                assert_eq!(disk.names(), Vec::<PathBuf>::new(), "{what}: something is left");
            }
        }
        assert!(outcomes.iter().all(|count| *count > 0), "{options:?}: {outcomes:?}");
    }
}

#[test]
fn an_image_that_is_replaced_stays_when_the_new_one_does_not_fit() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = tree(folder.path());
    let disk = Disk::new("size=1m");
    let image = disk.path("image");
    fs::write(&image, "an older image").expect("written");
    assert_full(&run(floe().arg("mkfs").arg(&image).arg(&source)), "a smaller disk");
    assert_eq!(fs::read(&image).expect("it is there"), b"an older image");
    assert_eq!(disk.names(), [image]);
}

#[test]
fn a_tree_that_does_not_fit_has_whole_files_only() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = tree(folder.path());
    let image = folder.path().join("image");
    assert!(run(floe().args(["mkfs", "-z", "lz4"]).arg(&image).arg(&source)).status.success());
    let sizes = (0..=STEPS).map(|step| format!("size={}k", (5 * KIB * step / STEPS).next_multiple_of(4).max(4)));
    let inodes = [2, 3, 10, 100, 203, 1000].map(|count| format!("size=16m,nr_inodes={count}"));
    let mut outcomes = [0, 0];
    for options in sizes.chain(inodes) {
        let disk = Disk::new(&options);
        let target = disk.path("target");
        let extracted = run(floe().args(["extract", "--quiet"]).arg(&image).arg("-C").arg(&target));
        outcomes[usize::from(extracted.status.success())] += 1;
        if !extracted.status.success() {
            assert_full(&extracted, &options);
        }
        let files = ["text".to_owned(), "noise".to_owned()];
        let files = files.into_iter().chain((0..200).map(|number| format!("small/{number}")));
        for name in files {
            match fs::read(target.join(&name)) {
                Ok(bytes) => {
                    let expected = fs::read(source.join(&name)).expect("the source");
                    assert!(bytes == expected, "{options}: {name} is there, with {} bytes", bytes.len());
                }
                Err(_) => assert!(!extracted.status.success(), "{options}: {name} is missing, and nobody says so"),
            }
        }
        let stray: Vec<PathBuf> = disk.names().into_iter().filter(|path| *path != target).collect();
        assert_eq!(stray, Vec::<PathBuf>::new(), "{options}");
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[test]
fn stopping_and_going_on_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = tree(folder.path());
    let make = |name: &str| {
        let mut command = floe();
        command.args(["mkfs", "--quiet", "-z", "lz4"]).arg(folder.path().join(name)).arg(&source);
        command
    };
    let extract = |name: &str| {
        let mut command = floe();
        command.args(["extract", "--quiet"]).arg(folder.path().join("calm")).arg("-C").arg(folder.path().join(name));
        command
    };
    assert!(run(&mut make("calm")).status.success());
    assert!(stops(make("stopped")) > 0, "it was stopped");
    let image = |name: &str| fs::read(folder.path().join(name)).expect("an image");
    assert!(image("calm") == image("stopped"), "the images differ");
    stops(extract("extracted"));
    for name in ["text", "noise", "small/199"] {
        let read = |root: &Path| fs::read(root.join(name)).expect("a file");
        assert!(read(&source) == read(&folder.path().join("extracted")), "{name} differs");
    }
}

/// Runs a program that is stopped and continued all the time, which interrupts waiting calls. Returns how often.
fn stops(mut command: Command) -> usize {
    let mut child = command.spawn().expect("floe runs");
    let pid = Pid::from_child(&child);
    let mut count = 0;
    loop {
        if let Some(status) = child.try_wait().expect("ours") {
            assert!(status.success(), "{status}");
            return count;
        }
        for signal in [Signal::STOP, Signal::CONT] {
            kill_process(pid, signal).expect("its process id is still in use");
        }
        count += 1;
        thread::sleep(Duration::from_millis(1));
    }
}
