//! SquashFS images of arbitrary bytes: opening, walking, reading and checking return errors or results.
#![no_main]

use std::sync::Arc;

use floe_fuzz::image::{IMAGE_BYTES_MAX, INODES_MAX, walk};
use floe_image::BlockReader;
use floe_squashfs::{Squashfs, check, dump};
use floe_testkit::DirectReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > IMAGE_BYTES_MAX {
        return;
    }
    let reader = Arc::new(DirectReader::of(bytes));
    let Ok(squashfs) = Squashfs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) else { return };
    walk(&reader, &squashfs);
    // A check reads all metadata, which takes too long if the image claims many inodes; the tree was small enough.
    if squashfs.superblock().inode_count <= 1024 {
        let mut blocks = 0;
        let mut decode = |block: check::BlockToDecode| {
            blocks += 1;
            if blocks <= INODES_MAX {
                let decoded = reader.decoded(&block.block);
                let _ = block.judge(decoded.as_ref().map(|decoded| decoded.bytes.len()));
            }
        };
        check::run(&squashfs, &mut |finding| drop(finding.to_string()), &mut decode, &|| false);
        let _ = dump::count(&squashfs).map(|statistics| statistics.to_string());
    }
    let _ = dump::describe_image(&squashfs).to_string();
});
