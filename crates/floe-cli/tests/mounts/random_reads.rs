//! Small reads at random offsets of one file.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use floe_testkit::{
    Random, keep_kernel_caches,
    skip::{self, Need},
};
use rustix::fs::{Advice, fadvise};

use crate::support::program::{Serving, floe, run, until};

const FILE_BYTES: u64 = 2 << 20;

const PAGE_BYTES: u64 = 4096;

const PAGE_COUNT: u64 = FILE_BYTES / PAGE_BYTES;

fn report(serving: &Serving) -> serde_json::Value {
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_rest_of_what_small_reads_touch_is_stored() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let _kept = keep_kernel_caches();
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let content = Random::new(51).text(FILE_BYTES as usize);
    fs::write(tree.join("file"), &content).expect("ours");
    let image = folder.path().join("image");
    for (options, requests_max) in [
        (&[][..], PAGE_COUNT / 2),
        // Blocks of a few pages, which have little rest.
        (&["-zlz4"], PAGE_COUNT / 8),
        (&["-zlz4", "-C65536"], PAGE_COUNT / 2),
        (&["-zlz4", "-C65536", "--fragments", "all"], PAGE_COUNT / 2),
    ] {
        let _ = fs::remove_file(&image);
        let made = run(floe().arg("mkfs").args(options).arg(&image).arg(&tree));
        assert!(made.status.success(), "{made:?}");
        let serving = Serving::new(&image, ["-o", "front=fuse"]);
        let file = File::open(serving.place.file("file")).expect("a file");
        fadvise(&file, 0, None, Advice::Random).expect("a hint");
        let read = |pages: &mut dyn Iterator<Item = u64>| {
            for offset in pages.map(|page| page * PAGE_BYTES) {
                let mut page = [0; PAGE_BYTES as usize];
                file.read_exact_at(&mut page, offset).expect("data");
                assert!(page[..] == content[offset as usize..][..page.len()], "{options:?}: offset {offset}");
            }
        };
        // Four pages of each cluster, far from each other.
        read(&mut (3..PAGE_COUNT).step_by(16));
        read(&mut (9..PAGE_COUNT).step_by(16));
        until("the rest is stored", || report(&serving)["read_around"]["stored_bytes"].as_u64() > Some(FILE_BYTES / 2));
        let before = report(&serving)["requests"]["read"].as_u64().expect("a number");
        read(&mut (0..PAGE_COUNT).rev());
        let requests = report(&serving)["requests"]["read"].as_u64().expect("a number") - before;
        eprintln!("{options:?}: {requests} requests for {PAGE_COUNT} pages");
        assert!(requests < requests_max, "{options:?}: {requests} requests for {PAGE_COUNT} pages");
    }
}
