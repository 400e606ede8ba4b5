//! Data that files share, in part or at arbitrary offsets, is stored once and read back correctly.

use std::{fs, num::NonZeroUsize, path::Path, process::Command};

use floe_mkfs::{Compression, Fragments, LZ4_WINDOW_MAX, NoProgress, Options, Source, build};
use floe_testkit::sample;

use crate::{
    differences::{Leave, check_equal, walk},
    sample_tree::{KernelMount, can_mount, fsck, noise, text},
};

const LZ4: Compression = Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX };
const LZ4HC: Compression = Compression::Lz4High { level: 3, window_bytes: LZ4_WINDOW_MAX };
const ZSTD: Compression = Compression::Zstd { level: 3, window_log2: 18 };
const DEFLATE: Compression = Compression::Deflate { level: 3 };
const LZMA: Compression = Compression::MicroLzma { level: 1, dictionary_bytes: 1 << 18 };

/// A row: a name and the options that it changes.
type Row = (&'static str, fn(&mut Options));

const ROWS: &[Row] = &[
    ("lz4", |options| options.compression = Some(LZ4)),
    ("lz4-512", |options| {
        options.compression = Some(LZ4);
        options.block_size_log2 = 9;
        options.pcluster_bytes = 512;
        options.inline_pclusters = true;
    }),
    ("lz4hc-fragments", |options| {
        options.compression = Some(LZ4HC);
        options.pcluster_bytes = 65536;
        options.fragments = Fragments::Tails;
        options.inline_pclusters = true;
    }),
    ("zstd-inline", |options| {
        options.compression = Some(ZSTD);
        options.pcluster_bytes = 65536;
        options.inline_pclusters = true;
    }),
    ("zstd-small-fragments", |options| {
        options.compression = Some(ZSTD);
        options.fragments = Fragments::Tails;
    }),
    ("deflate-16k-wide", |options| {
        options.compression = Some(DEFLATE);
        options.pcluster_bytes = 16384;
        options.wide = true;
    }),
    ("lzma-all", |options| {
        options.compression = Some(LZMA);
        options.pcluster_bytes = 32768;
        options.fragments = Fragments::All;
    }),
];

/// Deterministic pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Writes files composed of new data and parts of common data.
fn make(root: &Path, seed: u64) {
    let mut numbers = Numbers(seed);
    let mixed = [text(70_000, seed + 1), noise(30_001, seed + 2), text(45_678, seed + 3)].concat();
    let common = [text(300_000, seed + 4), noise(200_000, seed + 5), mixed, vec![0; 120_000]];
    for file in 0..16u64 {
        let mut content = Vec::new();
        for part in 0..1 + numbers.below(6) as u64 {
            let fresh_len = [numbers.below(10), numbers.below(9000), numbers.below(150_000)][numbers.below(3)];
            let fresh_seed = seed + 1000 * (file + 1) + part;
            content.extend(if numbers.below(3) == 0 {
                noise(fresh_len, fresh_seed)
            } else {
                text(fresh_len, fresh_seed)
            });
            let common = &common[numbers.below(common.len())];
            let start = [0, numbers.below(common.len()), numbers.below(20) * 4096][numbers.below(3)].min(common.len());
            let len = numbers.below(common.len() - start + 1);
            content.extend(&common[start..start + len]);
        }
        fs::write(root.join(format!("{file:02}")), content).unwrap();
    }
    // Slightly more than a segment precedes the repeated data.
    let before = text((4 << 20) + 1000, seed + 8);
    fs::write(root.join("a-segment-before"), [&before[..], &common[0]].concat()).unwrap();
    let own = text(150_000, seed + 6);
    fs::write(root.join("twice"), [&own[..], &text(400_000, seed + 7), &own[3..]].concat()).unwrap();
    fs::write(root.join("twice-noise"), [&noise(100_000, 9)[..], &noise(300_001, 10), &noise(100_000, 9)].concat())
        .unwrap();
}

fn image(row: &Row, source: &Path, directory: &Path, jobs: usize, dedupe: bool) -> (Options, u64) {
    let mut options = Options::new(directory.join("image"));
    options.jobs = NonZeroUsize::new(jobs).unwrap();
    options.dedupe = dedupe;
    row.1(&mut options);
    let sources = [Source::Directory(source.to_path_buf())];
    let summary = build(&options, &sources, &mut NoProgress).unwrap_or_else(|error| panic!("{}: {error}", row.0));
    (options, summary.image_bytes)
}

#[test]
fn parts_in_common_are_stored_once_and_read_as_they_were() {
    let (can_mount, fsck) = (can_mount(), fsck());
    for &seed in sample(&[1, 2, 3], 3) {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::create_dir(&source).unwrap();
        make(&source, seed * 1_000_000);
        let leave = Leave::default();
        let expected = walk(&source, leave);
        for row in ROWS {
            let what = format!("{} of {seed}", row.0);
            let (_, whole_bytes) = image(row, &source, directory.path(), 2, false);
            let (options, one_bytes) = image(row, &source, directory.path(), 1, true);
            let one = fs::read(&options.output).unwrap();
            image(row, &source, directory.path(), 8, true);
            assert!(one == fs::read(&options.output).unwrap(), "{what}: the images of 1 and 8 jobs differ");
            assert!(
                one_bytes + 200_000 < whole_bytes,
                "{what}: {one_bytes} bytes are not much less than {whole_bytes}"
            );
            if can_mount {
                let mount = KernelMount::new(&options.output, None).unwrap();
                check_equal(&expected, &walk(mount.path(), leave), &what);
            }
            if let Some(fsck) = &fsck {
                let target = directory.path().join("extracted");
                let target_option = format!("--extract={}", target.display());
                let output = Command::new(fsck).args([&target_option, "--force", "-d1"]).arg(&options.output).output();
                let output = output.unwrap();
                assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
                for entry in fs::read_dir(&source).unwrap() {
                    let entry = entry.unwrap();
                    let extracted = fs::read(target.join(entry.file_name())).unwrap();
                    assert!(extracted == fs::read(entry.path()).unwrap(), "{what}: {}", entry.path().display());
                }
                fs::remove_dir_all(&target).unwrap();
            }
        }
    }
}

/// The length of the common beginnings.
const BEGINNING_LEN: usize = 600_000;
/// The length of the common ends.
const END_LEN: usize = 50_000;

fn make_shared(root: &Path) {
    let beginning = [text(BEGINNING_LEN / 2, 1), noise(BEGINNING_LEN / 2, 2)].concat();
    let end = noise(END_LEN, 3);
    for (name, parts) in [
        ("begins.one", [&beginning, &text(90_000, 4)]),
        ("begins.two", [&beginning, &noise(70_001, 5)]),
        ("ends.one", [&text(10, 6), &end]),
        ("ends.two", [&text(11, 7), &end]),
        ("ends.three", [&text(9000, 8), &end]),
        ("ends.large", [&text(300_000, 9), &end]),
        ("end", [&Vec::new(), &end]),
    ] {
        fs::write(root.join(name), parts.map(Vec::as_slice).concat()).unwrap();
    }
}

#[test]
fn common_data_is_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    make_shared(&source);
    let can_mount = can_mount();
    let lz4 = Compression::Lz4High { level: 9, window_bytes: LZ4_WINDOW_MAX };
    let zstd = Compression::Zstd { level: 3, window_log2: 19 };
    for (compression, pcluster_bytes, fragments, dedupe, wide, least) in [
        (lz4, 4096, Fragments::None, true, false, BEGINNING_LEN * 9 / 10),
        (lz4, 65536, Fragments::None, true, false, BEGINNING_LEN / 2),
        (zstd, 65536, Fragments::Tails, true, false, BEGINNING_LEN / 2 + 2 * (END_LEN - 8192)),
        (zstd, 65536, Fragments::Tails, false, true, BEGINNING_LEN / 2 + 2 * (END_LEN - 8192)),
        (zstd, 65536, Fragments::All, true, false, 2 * (END_LEN - 8192)),
    ] {
        let images = [1, 8].map(|jobs| {
            let mut options = Options::new(directory.path().join("image"));
            options.compression = Some(compression);
            options.pcluster_bytes = pcluster_bytes;
            options.fragments = fragments;
            options.dedupe = dedupe;
            options.wide = wide;
            options.jobs = NonZeroUsize::new(jobs).unwrap();
            let what = format!("{compression:?} {pcluster_bytes} {fragments:?}");
            let summary = build(&options, &[Source::Directory(source.clone())], &mut NoProgress).unwrap();
            assert!(summary.duplicate_bytes >= least as u64, "{what}: {} of {least}", summary.duplicate_bytes);
            if can_mount {
                let mount = KernelMount::new(&options.output, None).unwrap();
                let leave = Leave::default();
                check_equal(&walk(&source, leave), &walk(mount.path(), leave), &what);
            }
            fs::read(&options.output).unwrap()
        });
        assert!(images[0] == images[1], "the images of 1 and 8 jobs differ");
    }
}
