//! LZ4 blocks: compares liblz4 and the windowed decoder.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::Lz4 { padding: block.padding, window_bytes: block.limit % 65_537 };
        block.check(encoding, include_bytes!("../sound/lz4"), include_bytes!("../sound/data"));
    }
});
