//! Raw DEFLATE streams: compares libdeflate and zlib-rs.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::Deflate { padding: block.padding, window_log2: (block.limit % 16) as u8 };
        block.check(encoding, include_bytes!("../sound/deflate"), include_bytes!("../sound/data"));
    }
});
