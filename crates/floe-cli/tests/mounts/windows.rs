//! The LZ4 window of an image bounds the temporary pages of each decode, and the status of its mount shows it.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use floe_testkit::{
    Random,
    skip::{self, Need},
};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use crate::support::program::{Serving, floe, run, told};

/// The unit of the window's pages.
const PAGE_BYTES: u64 = 4096;

/// The number of offsets at which the file is read.
const READ_COUNT: u64 = 300;

#[test]
fn small_windows_need_fewer_temporary_pages() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let mut random = Random::new(31);
    let content = random.text(6 << 20);
    fs::write(tree.join("file"), &content).expect("ours");
    let mut pages_in_all = Vec::new();
    for window_bytes in [64 << 10, 16 << 10, 4 << 10] {
        let image = folder.path().join(format!("{window_bytes}.erofs"));
        let mut command = floe();
        command.args(["mkfs", "--compress", "lz4", "--pcluster", "256k", "--lz4-window", &window_bytes.to_string()]);
        let output = run(command.arg(&image).arg(&tree));
        assert_eq!(told(&output).0, Some(0), "{output:?}");
        // Without a cache, a read of a part of a large block decodes the block into temporary pages.
        let serving = Serving::new(&image, ["-o", "cache=0,prefetch=none,fetch-around=off"]);
        let file = File::open(serving.place.file("file")).expect("it is there");
        fadvise(&file, 0, None, Advice::Random).expect("a hint");
        let mut places = Random::new(32);
        for _ in 0..READ_COUNT {
            let offset = places.below(content.len() as u64 - 5000);
            let mut bytes = vec![0; 5000];
            file.read_exact_at(&mut bytes, offset).expect("data");
            assert!(bytes == content[offset as usize..offset as usize + 5000], "{window_bytes} {offset}");
        }
        let output = run(floe().arg("status").arg(&serving.place.path).arg("--json"));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let lz4 = |field: &str| report["lz4"][field].as_u64().expect("a number");
        // LZ4 matches reach back at most 65,535 bytes.
        assert_eq!(lz4("window_bytes_max"), window_bytes.min(65_535));
        assert_eq!(
            lz4("temporary_pages_max"),
            window_bytes / PAGE_BYTES,
            "reads in the middle of blocks need the whole window"
        );
        assert!(lz4("temporary_pages") <= lz4("decodes") * window_bytes / PAGE_BYTES);
        assert!(lz4("decodes") >= READ_COUNT / 2, "{}", lz4("decodes"));
        pages_in_all.push(lz4("temporary_pages"));
    }
    assert!(pages_in_all[0] > 3 * pages_in_all[1] && pages_in_all[1] > 3 * pages_in_all[2], "{pages_in_all:?}");
    eprintln!("temporary pages for {READ_COUNT} reads with windows of 64, 16 and 4 KiB: {pages_in_all:?}");
}
