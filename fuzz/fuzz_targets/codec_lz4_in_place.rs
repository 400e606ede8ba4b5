//! LZ4 blocks decoded in place.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        block.check_in_place(Encoding::Lz4 { padding: block.padding, window_bytes: 65_536 });
    }
});
