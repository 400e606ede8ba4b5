//! Sources with holes.

use floe_testkit::run_bounded;
use floe_testkit::skip;
use floe_testkit::skip::Need;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::scene::{LIMIT, Mounted, done, folder, image, mkfs, run};

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
