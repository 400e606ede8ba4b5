//! Zstandard frames.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::Zstd { padding: block.padding, window_log2_max: (block.limit % 24) as u8 };
        block.check(encoding, include_bytes!("../sound/zstd"), include_bytes!("../sound/data"));
    }
});
