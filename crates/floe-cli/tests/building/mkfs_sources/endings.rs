//! Limits and signals.

use std::fs;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use floe_testkit::skip::{self, Need};
use floe_testkit::wait_until_caught;
use rustix::process::Signal;

use super::scene::{LIMIT, done, folder, image, mkfs};

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
