//! `floe mkfs` and its sources: holes, limits and signals, archive members, changing files, and invalid sources.

mod archives;
mod changing;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    run_bounded,
    skip::{self, Need},
    wait_until_caught,
};
use rustix::process::Signal;
use tempfile::TempDir;

/// The time limit for runs that could hang or take hours.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    folder
}

pub(crate) fn mkfs(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mkfs", "-q", "image"]).args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command
}

/// Runs it, and returns its exit code and messages.
pub(crate) fn run(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, String) {
    let run = run_bounded(&mut mkfs(folder, arguments), LIMIT).expect("floe runs");
    assert!(!run.is_timed_out, "{arguments:?} does not end");
    (run.status.code(), run.stderr)
}

pub(crate) fn image(folder: &TempDir) -> PathBuf {
    folder.path().join("image")
}

/// A mount of the image by the kernel. Unmounted when dropped.
pub(crate) struct Mounted(TempDir);

impl Mounted {
    pub(crate) fn new(image: &Path) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let output = Command::new("mount").args(["-t", "erofs", "-o", "ro"]).arg(image).arg(place.path()).output();
        let output = output.expect("mount runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(place)
    }

    pub(crate) fn path(&self, inner: &str) -> PathBuf {
        self.0.path().join(inner)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The offsets and bytes of the data in the sparse file.
const PARTS: [(u64, &[u8]); 3] = [(0, b"begin"), (5_000_000_001, b"between"), (700_000_000_000, b"end")];

fn put_sparse(path: &Path, size: u64) {
    let file = fs::File::create(path).expect("created");
    file.set_len(size).expect("holes");
    for (offset, bytes) in PARTS.iter().filter(|(offset, _)| *offset < size) {
        file.write_all_at(bytes, *offset).expect("written");
    }
}

fn check_sparse(path: &Path, size: u64) {
    let file = fs::File::open(path).expect("opened");
    assert_eq!(file.metadata().expect("its status").len(), size);
    for (offset, bytes) in PARTS.iter().filter(|(offset, _)| *offset < size) {
        let mut there = vec![1; bytes.len() + 1000];
        let len = file.read_at(&mut there, *offset).expect("read");
        assert!(there[..len].starts_with(bytes) && there[bytes.len()..len].iter().all(|byte| *byte == 0));
    }
    let mut zeros = vec![1; 1 << 16];
    file.read_exact_at(&mut zeros, size / 3).expect("read");
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn work_and_memory_follow_the_data_of_sparse_files() {
    let folder = folder();
    put_sparse(&folder.path().join("source/sparse"), 1 << 40);
    for more in [
        &[][..],
        &["--chunk", "1M"],
        &["--chunk", "64k"],
        &["-z", "lz4"],
        &["-z", "lz4", "--dedupe"],
        &["-b", "64k"],
        &["-b", "64k", "--chunk", "64k"],
        &["-b", "64k", "-z", "lz4"],
    ] {
        let full = ["source", "--verify", "full"];
        let run = run_bounded(&mut mkfs(&folder, &[&full, more].concat()), LIMIT).expect("floe runs");
        assert!(run.status.success(), "{more:?}: {} {:?}", run.stderr, run.status);
        assert!(run.resident_bytes_max < 600 << 20, "{more:?}: {} bytes of memory", run.resident_bytes_max);
        let status = fs::metadata(image(&folder)).expect("there is an image");
        assert!(status.len() < 100 << 20, "{more:?}: {} bytes", status.len());
        // The kernel cannot mount images with blocks larger than its pages.
        if !more.contains(&"-b") && skip::ready(&[Need::Root]) {
            let mounted = Mounted::new(&image(&folder));
            check_sparse(&mounted.path("sparse"), 1 << 40);
        }
    }
}

#[test]
fn chunks_take_time_for_their_number_and_no_more() {
    let folder = folder();
    let mut state = 1u64;
    let mut bytes = vec![0; 200 << 20];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    fs::write(folder.path().join("source/noise"), &bytes).expect("written");
    // 400,000 chunks: with quadratic time, this takes minutes.
    assert_eq!(run(&folder, &["source", "--chunk", "512", "-b", "512"]), (Some(0), String::new()));
}

#[test]
fn sparse_members_stay_sparse() {
    let folder = folder();
    let size = 20 << 30;
    put_sparse(&folder.path().join("source/sparse"), size);
    for (name, more) in [
        ("gnu", &["--format=gnu"][..]),
        ("0.0", &["--format=pax", "--sparse-version=0.0"]),
        ("0.1", &["--format=pax", "--sparse-version=0.1"]),
        ("1.0", &["--format=pax", "--sparse-version=1.0"]),
    ] {
        let mut tar = Command::new("tar");
        tar.args(["-S", "-cf", "source.tar"]).args(more).args(["-C", "source", "sparse"]).current_dir(folder.path());
        done(&mut tar);
        for more in [&[][..], &["--chunk", "4k"], &["-z", "zstd"]] {
            assert_eq!(run(&folder, &[&["source.tar"], more].concat()), (Some(0), String::new()), "{name} {more:?}");
            assert!(fs::metadata(image(&folder)).expect("an image").len() < 30 << 20, "{name} {more:?}");
            if skip::ready(&[Need::Root]) {
                check_sparse(&Mounted::new(&image(&folder)).path("sparse"), size);
            }
        }
    }
}

/// Enough for ten threads that are refused memory at the same moment, each of which writes up to six lines.
const REFUSED_LINES_MAX: usize = 60;

#[test]
fn refused_memory_ends_a_build_without_an_image() {
    let folder = folder();
    let text: String = (0..60_000).map(|number| format!("{number} of some numbers\n")).collect();
    for file in 0..2 {
        fs::write(folder.path().join(format!("source/{file}")), format!("{file}{text}")).expect("written");
    }
    let floe = env!("CARGO_BIN_EXE_floe");
    let mut refused = 0;
    for kibibytes in [50_000, 100_000, 200_000] {
        for more in ["-z lz4", "-z lz4 --dedupe --verify full", "-z lzma -C 1M -j 2", "-z zstd,19 --fragments all"] {
            let script = format!("ulimit -v {kibibytes}; exec {floe} mkfs -q image source {more}");
            let output = Command::new("sh")
                .args(["-c", &script])
                .current_dir(folder.path())
                .env_remove("RUST_BACKTRACE")
                .output();
            let output = output.expect("sh runs");
            let said = String::from_utf8_lossy(&output.stderr);
            let left: Vec<_> = fs::read_dir(folder.path()).expect("listed").collect();
            if output.status.success() {
                fs::remove_file(image(&folder)).expect("there is an image");
                continue;
            }
            refused += 1;
            assert_eq!(output.status.code(), Some(1), "{kibibytes} {more}: {} {said}", output.status);
            assert!(said.contains("memory"), "{kibibytes} {more}: {said}");
            // Several threads may be refused memory at once, and the standard library writes lines for each.
            assert!(said.lines().count() <= REFUSED_LINES_MAX, "{kibibytes} {more}: {said}");
            assert_eq!(left.len(), 1, "{kibibytes} {more}: {left:?}");
        }
    }
    assert!(refused > 0, "nothing was refused");
}

#[test]
fn a_limited_address_space_is_left_to_the_data() {
    let folder = folder();
    fs::write(folder.path().join("source/text"), "some text of a source\n".repeat(120_000)).expect("written");
    let floe = env!("CARGO_BIN_EXE_floe");
    for kibibytes in (120_000..320_000).step_by(20_000) {
        let script = format!("ulimit -v {kibibytes}; exec {floe} mkfs -q image source -z lz4 -j 2");
        let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output();
        let output = output.expect("sh runs");
        assert!(output.status.success(), "{kibibytes}: {}", String::from_utf8_lossy(&output.stderr));
        fs::remove_file(image(&folder)).expect("there is an image");
    }
}

#[test]
fn few_descriptors_are_enough() {
    let folder = folder();
    for directory in 0..100 {
        fs::create_dir(folder.path().join(format!("source/{directory}"))).expect("made");
        for file in 0..10 {
            fs::write(folder.path().join(format!("source/{directory}/{file}")), "text".repeat(file * 999))
                .expect("written");
        }
    }
    let floe = env!("CARGO_BIN_EXE_floe");
    let script = format!("ulimit -n 64; exec {floe} mkfs -q image source -j 200 -z lz4 --dedupe --verify=full");
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(folder.path()).env_remove("RUST_BACKTRACE").output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let folder = folder();
    let outside = folder.path().join("outside");
    fs::create_dir_all(outside.join("sub")).expect("made");
    fs::write(outside.join("sub/secret-name"), "secret").expect("written");
    let base = folder.path().join("source");
    // Many directories are listed before the last one, so it is replaced after it was seen and before it is entered.
    for number in 0..300 {
        fs::create_dir_all(base.join(format!("{number}/sub"))).expect("made");
        for file in 0..20 {
            fs::write(base.join(format!("{number}/{file}")), "").expect("written");
        }
    }
    for _ in 0..5 {
        let mut child = mkfs(&folder, &["source"]).stderr(Stdio::null()).spawn().expect("floe runs");
        let victim = base.join("299");
        let aside = folder.path().join("aside");
        while child.try_wait().expect("our own child").is_none() {
            fs::rename(&victim, &aside).expect("renamed");
            std::os::unix::fs::symlink(&outside, &victim).expect("linked");
            fs::remove_file(&victim).expect("removed");
            fs::rename(&aside, &victim).expect("renamed");
        }
        let listed =
            Command::new(env!("CARGO_BIN_EXE_floe")).args(["ls", "-R", "image"]).current_dir(folder.path()).output();
        let listed = String::from_utf8(listed.expect("floe runs").stdout).expect("text");
        assert!(!listed.contains("secret-name"), "the target of a link is in the image");
    }
}

/// Ends a child by a signal, and returns how long that took.
fn ended(child: &mut Child, signal: &str) -> Duration {
    let begin = Instant::now();
    done(Command::new("kill").args([signal, &child.id().to_string()]));
    while child.try_wait().expect("our own child").is_none() && begin.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    begin.elapsed()
}

#[test]
fn a_signal_ends_a_build_that_waits_or_computes() {
    let folder = folder();
    let text: Vec<u8> = (0..6_000_000u64).flat_map(|n| format!("{} ", n * n % 99_991).into_bytes()).collect();
    fs::write(folder.path().join("source/text"), text).expect("written");
    for (signal, more) in [("-TERM", &["-"][..]), ("-INT", &["source", "-z", "lzma,9", "-C", "1M"])] {
        if signal == "-INT" && !skip::ready(&[Need::Signal(Signal::INT)]) {
            continue;
        }
        let mut command = mkfs(&folder, more);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("floe runs");
        let _kept_open = child.stdin.take();
        wait_until_caught(child.id(), Signal::TERM);
        // The child is working by then.
        thread::sleep(Duration::from_millis(200));
        let took = ended(&mut child, signal);
        assert!(took < LIMIT, "{more:?}: {took:?}");
        assert_eq!(child.wait().expect("it ended").code(), Some(130), "{more:?}");
        let left = fs::read_dir(folder.path()).expect("listed").count();
        assert_eq!(left, 1, "{more:?}: something is left besides the source");
    }
}
