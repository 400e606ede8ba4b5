//! Small reads at random offsets of one file.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use floe_testkit::{
    Random,
    skip::{self, Need},
};
use rustix::fs::{Advice, fadvise};

use crate::support::program::{Serving, floe, run};

const FILE_BYTES: u64 = 2 << 20;

const PAGE_BYTES: u64 = 4096;

/// Each page is in another part of the file than the page before.
const STRIDE_PAGES: u64 = 31;

#[test]
fn the_rest_of_what_small_reads_touch_is_stored() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let content = Random::new(51).text(FILE_BYTES as usize);
    fs::write(tree.join("file"), &content).expect("ours");
    let image = folder.path().join("image");
    for options in [&[][..], &["-zlz4", "-C65536"], &["-zlz4", "-C65536", "--fragments", "all"]] {
        let _ = fs::remove_file(&image);
        let made = run(floe().arg("mkfs").args(options).arg(&image).arg(&tree));
        assert!(made.status.success(), "{made:?}");
        let serving = Serving::new(&image, ["-o", "front=fuse"]);
        let file = File::open(serving.place.file("file")).expect("a file");
        fadvise(&file, 0, None, Advice::Random).expect("a hint");
        let page_count = FILE_BYTES / PAGE_BYTES;
        let mut page = [0; PAGE_BYTES as usize];
        for index in 0..page_count {
            let offset = index * STRIDE_PAGES % page_count * PAGE_BYTES;
            file.read_exact_at(&mut page, offset).expect("data");
            assert!(page[..] == content[offset as usize..][..page.len()], "{options:?}: offset {offset}");
        }
        let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let requests = report["requests"]["read"].as_u64().expect("a number");
        eprintln!("{options:?}: {requests} requests for {page_count} pages");
        assert!(requests < page_count / 2, "{options:?}: {requests} requests for {page_count} pages");
    }
}
