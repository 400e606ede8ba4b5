//! EROFS images of arbitrary bytes: opening, walking, reading and checking return errors or results.
#![no_main]

use std::sync::Arc;

use floe_erofs::{
    Erofs,
    check::{Check, DataRun},
};
use floe_fuzz::image::{IMAGE_BYTES_MAX, INODES_MAX, walk};
use floe_image::BlockReader;
use floe_testkit::DirectReader;
use libfuzzer_sys::fuzz_target;

/// Offsets of the superblock and of fields in it, in bytes.
const SUPERBLOCK: usize = 1024;
const CHECKSUM: std::ops::Range<usize> = SUPERBLOCK + 4..SUPERBLOCK + 8;
const BLOCK_SIZE_LOG2: usize = SUPERBLOCK + 12;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > IMAGE_BYTES_MAX {
        return;
    }
    let mut image = bytes.to_vec();
    mend_checksum(&mut image);
    let reader = Arc::new(DirectReader::of(image));
    if let Ok(erofs) = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
        walk(&reader, &erofs);
    }
    let Ok(check) = Check::open(Arc::clone(&reader) as Arc<dyn BlockReader>) else { return };
    let walked = check.walk(&mut |finding| drop(finding.to_string()), &|| false);
    for part in walked.parts().iter().take(INODES_MAX) {
        let mut run_count = 0;
        check.data(
            &walked,
            part,
            &mut |run| {
                run_count += 1;
                match run {
                    DataRun::Encoded(block) if run_count <= INODES_MAX => reader.decoded(&block).map(drop),
                    _ => Ok(()),
                }
            },
            &mut |finding| drop(finding.to_string()),
        );
    }
});

/// Updates the superblock's checksum, so that the reader does not stop there.
fn mend_checksum(image: &mut [u8]) {
    let block_size = 1usize << image.get(BLOCK_SIZE_LOG2).copied().unwrap_or(12).clamp(9, 12);
    let end = if block_size > SUPERBLOCK { block_size } else { SUPERBLOCK + block_size };
    if let Some(checksum) = image.get_mut(CHECKSUM) {
        checksum.fill(0);
    }
    let Some(guarded) = image.get(SUPERBLOCK..end.min(image.len())) else { return };
    let checksum = !crc32c::crc32c(guarded);
    if let Some(place) = image.get_mut(CHECKSUM) {
        place.copy_from_slice(&checksum.to_le_bytes());
    }
}
