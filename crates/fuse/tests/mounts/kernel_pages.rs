//! The kernel shows correct bytes for files whose pages are pushed into its page cache while reads fail.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use floe_engine::EngineOptions;
use floe_fuse::{KernelOptions, MountOptions};
use floe_image::Nid;
use floe_testkit::Random;

use crate::support::{Gate, Numbering, TestMount, TreeFileSystem, can_mount};

/// Files consist of blocks of this many bytes. A small read in a block causes the rest of the block to be pushed.
const REGION_BYTES: usize = 128 << 10;

const FILE_BYTES: usize = 32 * REGION_BYTES;

/// Reads from here on fail at first, so that the last folios of the file have no data.
const FAILED_FROM: usize = FILE_BYTES - 8 * REGION_BYTES;

const ROUNDS: usize = 5;

/// Bytes without zeros, different in each page.
fn content(round: usize) -> Vec<u8> {
    let words = (0..FILE_BYTES / 4).map(|index| (index as u32 + 1).wrapping_mul(0x9e37_79b1) ^ round as u32);
    words.flat_map(|word| (word | 0x0101_0101).to_le_bytes()).collect()
}

/// A store ends at the end of the file, in the middle of a folio that a failed read left without data. If FUSE has
/// folios of several pages, Linux may mark all of such a folio as read, because `fuse_notify_store` checks the
/// alignment of the store to a page instead of a folio. With small folios, as in 6.18, Floe's stores cannot cause wrong
/// bytes.
#[test]
fn pushed_pages_at_the_end_of_a_file_show_no_wrong_bytes_after_failed_reads() {
    if !can_mount() {
        return;
    }
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for round in 0..ROUNDS {
        tree.file_in_blocks(&round.to_string(), &content(round), REGION_BYTES);
    }
    let gate = Arc::new(Gate::default());
    let kernel = KernelOptions { readahead_bytes: Some(1 << 20), ..KernelOptions::default() };
    let options = MountOptions { kernel, ..MountOptions::default() };
    let mount = TestMount::gated(tree, &gate, &options);
    push_again_and_again(&mount);
    for round in 0..ROUNDS {
        let expected = content(round);
        let file = File::open(mount.file(&round.to_string())).expect("a file");
        let nid = Nid(file.metadata().expect("attributes").ino());
        // Sequential reads make the kernel use large folios.
        let mut piece = vec![0; 64 << 10];
        for offset in (0..FILE_BYTES).step_by(piece.len()) {
            if offset == FAILED_FROM {
                gate.fail();
            }
            let result = file.read_exact_at(&mut piece, offset as u64);
            assert!(result.is_err() || piece == expected[offset..offset + piece.len()], "round {round}, byte {offset}");
        }
        gate.open();
        // Each round pushes a different part of the end of the file.
        let region = FILE_BYTES - (1 + round % 4) * REGION_BYTES;
        for region in (region..FILE_BYTES).step_by(REGION_BYTES) {
            push(&mount, nid, region);
        }
        for offset in (0..FILE_BYTES).step_by(piece.len()) {
            file.read_exact_at(&mut piece, offset as u64).expect("the source is well again");
            assert!(
                piece == expected[offset..offset + piece.len()],
                "round {round}: wrong bytes from byte {offset} on"
            );
        }
    }
}

/// Stores at the ends of files, concurrent with failing reads, killed reads and dropped pages.
#[test]
fn reads_during_pushes_failures_and_kills_are_right_or_fail() {
    if !can_mount() {
        return;
    }
    let sizes = [1, 4095, 4096, 4097, REGION_BYTES - 1, REGION_BYTES, REGION_BYTES + 100, 2 * REGION_BYTES + 8192];
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for round in 0..ROUNDS {
        for size in sizes {
            tree.file_in_blocks(&format!("{round}-{size}"), &content(round)[..size], REGION_BYTES);
        }
    }
    let gate = Arc::new(Gate::default());
    let mount = TestMount::gated(tree, &gate, &MountOptions::default());
    push_again_and_again(&mount);
    for round in 0..ROUNDS {
        let contents = content(round);
        let path = |size: usize| mount.file(&format!("{round}-{size}"));
        let files = sizes.map(|size| (File::open(path(size)).expect("a file"), size));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..3 {
                let (files, contents, is_over) = (&files, &contents, &is_over);
                scope.spawn(move || read_at_random(files, contents, seed, is_over));
            }
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let mut reader = Command::new("cat");
                    reader.args(sizes.map(path)).stdout(Stdio::null()).stderr(Stdio::null());
                    let mut reader = reader.spawn().expect("cat");
                    thread::sleep(Duration::from_millis(3));
                    reader.kill().expect("ours");
                    reader.wait().expect("ours");
                }
            });
            let end = Over(&is_over);
            for turn in 0..20 {
                if turn % 2 == 0 {
                    gate.fail()
                } else {
                    gate.open()
                }
                thread::sleep(Duration::from_millis(2));
                for (file, size) in files.iter().filter(|_| turn % 2 == 1) {
                    let nid = Nid(file.metadata().expect("attributes").ino());
                    let last_region = (size - 1) / REGION_BYTES * REGION_BYTES;
                    for offset in [last_region, 0] {
                        mount.reader.read_then(nid, offset as u64, 4096, |_| {});
                    }
                }
            }
            drop(end);
        });
        gate.open();
        assert!(files.iter().all(|(file, size)| read_all(file, *size).is_ok_and(|read| read == contents[..*size])));
    }
    assert!(mount.reader.read_around_counters().stored_bytes > 0, "nothing was pushed");
}

/// Ends the threads of a scope, even after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Reads files at random, and makes the kernel drop their pages now and then.
fn read_at_random(files: &[(File, usize)], contents: &[u8], seed: u64, is_over: &AtomicBool) {
    let mut random = Random::new(seed);
    while !is_over.load(Relaxed) {
        let (file, size) = &files[random.below(files.len() as u64) as usize];
        if random.below(3) == 0 {
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let offset = random.below(*size as u64);
        let mut piece = vec![0; 1 + random.below(20_000) as usize];
        if let Ok(len) = file.read_at(&mut piece, offset) {
            let expected = &contents[offset as usize..*size];
            assert!(len > 0 && expected.starts_with(&piece[..len]), "{size} bytes: wrong from byte {offset} on");
        }
    }
}

fn read_all(file: &File, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0).map(|()| bytes)
}

/// Shrinks the block cache so that blocks are decoded, and therefore pushed, repeatedly.
fn push_again_and_again(mount: &TestMount) {
    let options = EngineOptions { cache_bytes: 4 * REGION_BYTES as u64, ..EngineOptions::default() };
    mount.reader.engine().tune(&options).expect("a small cache");
}

/// Pushes part of a file into the kernel's page cache by a read that bypasses the kernel.
fn push(mount: &TestMount, nid: Nid, region: usize) {
    let stored_before = mount.reader.read_around_counters().stored_bytes;
    mount.reader.read_then(nid, (region + (40 << 10)) as u64, 4096, |result| assert!(result.is_ok()));
    let began = Instant::now();
    while mount.reader.read_around_counters().stored_bytes == stored_before {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing was pushed");
        thread::sleep(Duration::from_millis(1));
    }
}
