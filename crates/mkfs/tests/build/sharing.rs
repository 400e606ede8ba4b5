//! Data that files share in part is stored once and read back correctly.

use std::{fs, num::NonZeroUsize, path::Path};

use floe_mkfs::{Compression, Fragments, LZ4_WINDOW_MAX, NoProgress, Options, Source, build};

use crate::{
    differences::{Leave, check_equal, walk},
    environment::{KernelMount, can_mount},
    sample_tree::{noise, text},
};

/// The length of the common beginnings.
const BEGINNING_LEN: usize = 600_000;
/// The length of the common ends.
const END_LEN: usize = 50_000;

fn make(root: &Path) {
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
    make(&source);
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
