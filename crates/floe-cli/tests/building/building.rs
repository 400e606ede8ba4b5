//! `floe mkfs`: its sources, its verification of the image, and its exit codes.

use std::{
    fs,
    num::NonZeroUsize,
    os::unix::fs::{FileExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe::{Image, ImageVerifier, OpenOptions, Thoroughness};
use floe_mkfs::{
    Compression, Error, Expected, LZ4_WINDOW_MAX, NoProgress, Options, Progress, Source, Verified, Verifier,
    VerifyError, build_unnamed,
};
use floe_testkit::{
    skip::{self, Need},
    wait_until_caught,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::program::{said, wait_until_unused};

/// A folder with a small tree in `source`.
fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("a/b")).expect("made");
    let text: String = (0..40_000u64).map(|number| format!("{} ", number * number % 9973)).collect();
    let noise: Vec<u8> =
        (0..300_000u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 43 ^ n.wrapping_mul(n) >> 9) as u8).collect();
    fs::write(source.join("text"), &text).expect("written");
    fs::write(source.join("a/noise"), noise).expect("written");
    fs::write(source.join("a/b/small"), "a few bytes").expect("written");
    fs::write(source.join("a/b/empty"), "").expect("written");
    fs::hard_link(source.join("text"), source.join("a/b/text")).expect("linked");
    symlink("../text", source.join("a/link")).expect("linked");
    folder
}

fn floe(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg("mkfs").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command
}

fn json(folder: &TempDir, arguments: &[&str]) -> serde_json::Value {
    let output = floe(folder, arguments).arg("--json").output().expect("floe runs");
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn built_images_are_read_back() {
    let folder = scene();
    let content = 300_000 + fs::metadata(folder.path().join("source/text")).expect("it is there").len() + 11;
    for more in [
        &[][..],
        &["-z", "lz4", "--inline-tails"],
        &["-z", "zstd,3", "-C", "64k", "--fragments", "tails", "--dedupe"],
        &["-z", "lzma", "-C", "1M", "--fragments", "all"],
        &["-z", "deflate", "-b", "1k", "-C", "16k"],
        &["--chunk", "4k", "--extended-inodes", "-T", "77", "--all-root"],
    ] {
        for (verify, inodes, bytes) in [("none", 0, 0), ("sample", 8, content), ("full", 8, content)] {
            let verify = format!("--verify={verify}");
            let found = json(&folder, &[&["image", "source", &verify], more].concat());
            assert_eq!(found["verified_inodes"], inodes, "{more:?}");
            assert_eq!(found["verified_bytes"], bytes, "{more:?}");
            assert_eq!(found["verify_seconds"].as_f64() > Some(1e-5), inodes > 0, "{more:?}");
        }
    }
    let output = floe(&folder, &["image", "source"]).output().expect("floe runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("read back in"), "{output:?}");
}

/// Changes a byte of the image before it is read back.
struct Spoiler {
    offset: u64,
    verifier: ImageVerifier,
}

impl Verifier for Spoiler {
    fn verify(
        &mut self,
        image: &Path,
        devices: &[PathBuf],
        expected: &Expected<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Verified, VerifyError> {
        let file = fs::File::options().read(true).write(true).open(image).expect("it can be opened");
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.offset).expect("it is there");
        file.write_all_at(&[byte[0] ^ 0x10], self.offset).expect("it can be written");
        self.verifier.verify(image, devices, expected, progress)
    }
}

#[test]
fn an_image_that_does_not_read_back_is_not_kept() {
    let folder = scene();
    let source = Source::Directory(folder.path().join("source"));
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("made");
    let lz4 = Some(Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX });
    for (name, compression) in [("plain", None), ("lz4", lz4)] {
        let mut options = Options::new(out.join("image"));
        options.compression = compression;
        let verifier = ImageVerifier { thoroughness: Thoroughness::Full, jobs: NonZeroUsize::new(2).expect("not 0") };
        let summary =
            build_unnamed(&options, std::slice::from_ref(&source), Some(&mut verifier.clone()), &mut NoProgress)
                .and_then(|image| image.finish(&[]));
        let summary = summary.expect("an unmodified image is accepted");
        let image = Image::open(&options.output, &OpenOptions::default()).expect("it opens");
        // The offset of the root's inode: 32 bytes per nid, from the first metadata block on.
        let metadata = 4096 + summary.data_bytes;
        let root = metadata.next_multiple_of(4096) + 32 * image.root().0;
        let root = if image.root().0 * 32 + metadata < summary.image_bytes { root } else { metadata };
        fs::remove_file(&options.output).expect("removed");
        for (what, offset) in [
            ("the magic number", 1024),
            ("the UUID's neighbour, the checksum", 1028),
            ("data", 4096 + 1234),
            ("more data", 4096 + summary.data_bytes / 2),
            ("the mode of the root", root + 4),
        ] {
            let mut spoiler = Spoiler { offset, verifier };
            match build_unnamed(&options, std::slice::from_ref(&source), Some(&mut spoiler), &mut NoProgress) {
                Err(Error::Verify(fault)) => assert!(!fault.contains('\n'), "{name}, {what}: {fault}"),
                other => panic!("{name}, {what}: {:?}", other.err()),
            }
            assert_eq!(fs::read_dir(&out).expect("listed").count(), 0, "{name}, {what}");
        }
    }
}

#[test]
fn archives_come_by_name_and_by_pipe() {
    let folder = scene();
    let output = Command::new("tar")
        .args(["--format=pax", "--xattrs", "-czf", "source.tar.gz", "-C", "source", "."])
        .current_dir(folder.path())
        .output()
        .expect("there is tar");
    assert!(output.status.success(), "{}", said(&output));
    let archive = fs::File::open(folder.path().join("source.tar.gz")).expect("it is there");
    for (image, source) in [("one", "source"), ("two", "source.tar.gz"), ("three", "-")] {
        let stdin = archive.try_clone().expect("cloned");
        let output = floe(&folder, &[image, source, "-z", "lz4"]).stdin(stdin).output().expect("floe runs");
        assert!(output.status.success(), "{source}: {}", said(&output));
    }
    let [one, two, three] = ["one", "two", "three"].map(|image| fs::read(folder.path().join(image)).expect("read"));
    assert!(one == two && two == three, "a directory and its archives give different images");
}

#[test]
fn invalid_sources_are_reported_in_one_line() {
    let folder = scene();
    fs::write(folder.path().join("text"), "no archive at all\n".repeat(100)).expect("written");
    for (arguments, exit, words) in [
        (&["image", "nothing"][..], 1, "nothing: No such file"),
        (&["image", "text"], 1, "text: it is neither a directory nor a tar archive"),
        (&["image", "-"], 1, "standard input: it is empty"),
        (&["image", "-", "-"], 2, "only once"),
        (&["image"], 2, "SOURCE"),
        (&["image", "source", "-z", "brotli"], 2, "'brotli' is unknown"),
    ] {
        let output = floe(&folder, arguments).output().expect("floe runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(!folder.path().join("image").exists(), "{arguments:?}");
    }
}

/// A folder with a larger tree in `source`, an archive of it, and an empty folder for images.
fn large_scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    fs::create_dir(folder.path().join("out")).expect("made");
    for number in 0..30u64 {
        let word = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15 + number) >> 21).to_le_bytes();
        let bytes: Vec<u8> = (0..100_000).flat_map(word).collect();
        fs::write(folder.path().join(format!("source/{number}")), bytes).expect("written");
    }
    let tar = Command::new("tar").args(["-czf", "source.tar.gz", "source"]).current_dir(folder.path()).status();
    assert!(tar.expect("there is tar").success());
    folder
}

fn started(folder: &TempDir, source: &str) -> Child {
    let mut command = floe(folder, &["out/image", source, "-z", "zstd,9", "--dedupe", "--verify=full"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("floe runs")
}

fn left(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join("out")).expect("listed");
    entries.map(|entry| entry.expect("listed").file_name().into_string().expect("plain")).collect()
}

/// How many builds of a large tree are killed. `interrupted` kills many of small ones.
const ROUNDS: u32 = 7;

#[test]
fn any_end_of_a_build_leaves_a_whole_image_or_none() {
    let folder = large_scene();
    for source in ["source", "source.tar.gz"] {
        let begin = Instant::now();
        assert!(started(&folder, source).wait().expect("it ends").success());
        let mut whole_time = begin.elapsed();
        let whole = fs::read(folder.path().join("out/image")).expect("read");
        fs::remove_file(folder.path().join("out/image")).expect("removed");
        let mut ended_early = 0;
        for round in 0..ROUNDS {
            let mut child = started(&folder, source);
            thread::sleep(whole_time * (round * 3 % ROUNDS) / ROUNDS);
            child.kill().expect("killed");
            child.wait().expect("it ends");
            match left(&folder).as_slice() {
                [] => ended_early += 1,
                [image] if image == "image" => {
                    assert!(
                        fs::read(folder.path().join("out/image")).expect("read") == whole,
                        "{source}: another image"
                    );
                    fs::remove_file(folder.path().join("out/image")).expect("removed");
                    // The first one may have shared a busy machine.
                    whole_time = whole_time * 3 / 4;
                }
                others => panic!("{source}: {others:?} are left"),
            }
        }
        assert!(ended_early > 1, "{source}: {ended_early} of {ROUNDS} ended early");
    }
}

#[test]
fn a_signal_ends_a_build_cleanly() {
    let folder = large_scene();
    let mut attempts_left = 20;
    for (signal, source) in [(Signal::INT, "source"), (Signal::TERM, "source.tar.gz")] {
        if !skip::ready(&[Need::Signal(signal)]) {
            continue;
        }
        let output = loop {
            let child = started(&folder, source);
            wait_until_caught(child.id(), signal);
            thread::sleep(Duration::from_millis(60));
            kill_process(Pid::from_child(&child), signal).expect("our own child");
            let output = child.wait_with_output().expect("it ends");
            if !output.status.success() {
                break output;
            }
            // This thread did not run for so long that the image was complete before the signal.
            fs::remove_file(folder.path().join("out/image")).expect("removed");
            attempts_left -= 1;
            assert!(attempts_left > 0, "{signal:?} has no effect");
        };
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {}", said(&output));
        assert_eq!(said(&output), "floe: cancelled before the image was complete\n", "{signal:?}");
        assert_eq!(left(&folder), Vec::<String>::new(), "{signal:?}");
    }
}

#[test]
fn a_full_disk_is_reported_and_nothing_stays() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = large_scene();
    for (size, source) in [("2m", "source"), ("2m", "source.tar.gz"), ("27m", "source.tar.gz")] {
        let size = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none", "out"]).current_dir(folder.path());
        assert!(mount.status().expect("mount runs").success());
        let output = started(&folder, source).wait_with_output().expect("it ends");
        let left = left(&folder);
        wait_until_unused(&folder.path().join("out"));
        let unmounted = Command::new("umount").arg(folder.path().join("out")).status();
        assert!(unmounted.expect("umount runs").success());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{source}: {said}");
        assert!(said.contains("No space left") && said.contains("out/image"), "{source}: {said}");
        assert_eq!(said.lines().count(), 1, "{source}: {said}");
        assert_eq!(left, Vec::<String>::new(), "{source}");
    }
}
