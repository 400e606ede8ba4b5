//! Failed builds print a clear message and leave no image under the final name.

use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use floe_mkfs::{Compression, Error, LZ4_WINDOW_MAX, NoProgress, Options, Phase, Progress, Source, build};

use crate::sample_tree::{can_mount, noise};

fn options(output: &Path) -> Options {
    let mut options = Options::new(output);
    options.compression = Some(Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX });
    options
}

/// Fails unless a build ends with an error that contains these words, and leaves the directory unchanged.
fn check(options: &Options, source: &Path, progress: &mut dyn Progress, words: &[&str]) -> Error {
    let directory = options.output.parent().unwrap();
    let before = names(directory);
    let error = build(options, &[Source::Directory(source.into())], progress).expect_err("it cannot be built");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(before, names(directory), "{text}");
    error
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Changes the source after the tree was listed.
struct SourceChanger<F: FnMut()>(F);

impl<F: FnMut()> Progress for SourceChanger<F> {
    fn advance(&mut self, phase: Phase, _: u64, _: u64) -> ControlFlow<()> {
        if phase == Phase::Compare {
            (self.0)();
        }
        ControlFlow::Continue(())
    }
}

struct Stop;

impl Progress for Stop {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

#[test]
fn sources_that_cannot_be_read_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("image");
    let options = options(&output);
    let missing = directory.path().join("missing");
    check(&options, &missing, &mut NoProgress, &["cannot look at", "missing", "No such file"]);
    let file = directory.path().join("file");
    fs::write(&file, b"x").unwrap();
    check(&options, &file, &mut NoProgress, &["file", "is not a directory"]);
}

#[test]
fn files_that_change_meanwhile_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    for (name, seed) in [("a", 4), ("b", 1)] {
        fs::write(source.join(name), noise(50_000, seed)).unwrap();
    }
    for (what, change) in [
        ("grows", (|path| fs::write(path, noise(60_000, 2))) as fn(&Path) -> std::io::Result<()>),
        ("shrinks", |path| fs::write(path, b"short")),
        ("is another", |path| fs::remove_file(path).and_then(|()| fs::write(path, noise(50_000, 3)))),
    ] {
        let victim = source.join("b");
        let mut options = options(&directory.path().join("image"));
        // Files are compared between listing and storing.
        options.dedupe = true;
        options.strict = true;
        let mut changer = SourceChanger(|| change(&victim).unwrap());
        let error = check(&options, &source, &mut changer, &["b changed while it was read"]);
        assert!(matches!(error, Error::Changed { .. }), "{what}: {error}");
        fs::write(&victim, noise(50_000, 1)).unwrap();
    }
}

#[test]
fn archives_that_change_meanwhile_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("source.tar");
    let make = |seed| {
        let mut builder = tar::Builder::new(fs::File::create(&archive).unwrap());
        for name in ["a", "b"] {
            let mut header = tar::Header::new_ustar();
            header.set_size(50_000);
            builder.append_data(&mut header, name, noise(50_000, seed).as_slice()).unwrap();
        }
        builder.finish().unwrap();
    };
    make(1);
    let mut options = options(&directory.path().join("image"));
    options.dedupe = true;
    let mut changer = SourceChanger(|| make(2));
    let error = build(&options, &[Source::Tar(archive.clone())], &mut changer).expect_err("it changes");
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(names(directory.path()), ["source.tar"]);
}

#[test]
fn an_existing_image_stays_until_the_new_one_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), noise(1_000_000, 1)).unwrap();
    let output = directory.path().join("image");
    fs::write(&output, b"the image before").unwrap();
    check(&options(&output), &source, &mut Stop, &["cancelled before"]);
    assert_eq!(fs::read(&output).unwrap(), b"the image before");
    build(&options(&output), &[Source::Directory(source)], &mut NoProgress).unwrap();
    assert!(fs::metadata(&output).unwrap().len() > 1_000_000);
}

#[test]
fn a_full_disk_is_reported() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, small) = (directory.path().join("source"), directory.path().join("small"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&small).unwrap();
    fs::write(source.join("file"), noise(8_000_000, 1)).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(&small).status().unwrap();
    assert!(mounted.success());
    let result = std::panic::catch_unwind(|| {
        check(&options(&small.join("image")), &source, &mut NoProgress, &["cannot write the image", "No space left"]);
    });
    assert!(Command::new("umount").arg("--lazy").arg(&small).status().unwrap().success());
    result.unwrap();
}

/// Builds an image in a child process for the test below; does nothing if run directly.
#[test]
fn build_in_a_child_process() {
    let Some(directory) = std::env::var_os("FLOE_MKFS_TO_BE_KILLED") else { return };
    let directory = Path::new(&directory);
    let source = Source::Directory(directory.join("source"));
    let _ = build(&options(&directory.join("out/image")), &[source], &mut NoProgress);
}

#[test]
fn a_killed_build_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("source")).unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    for number in 0..40 {
        fs::write(directory.path().join(format!("source/{number}")), noise(1_000_000, number)).unwrap();
    }
    let (mut killed, mut whole) = (0, 0);
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failures::build_in_a_child_process", "--nocapture"])
            .env("FLOE_MKFS_TO_BE_KILLED", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(10 + round * 17));
        let _ = child.kill();
        child.wait().unwrap();
        let left = names(&directory.path().join("out"));
        match left.as_slice() {
            [] => killed += 1,
            [image] => {
                assert_eq!(image, "image");
                // A complete image contains all data, which is incompressible.
                assert!(fs::metadata(directory.path().join("out/image")).unwrap().len() > 40_000_000);
                fs::remove_file(directory.path().join("out/image")).unwrap();
                whole += 1;
            }
            more => panic!("{more:?}"),
        }
    }
    assert!(killed > 0, "{whole} images were whole");
}
