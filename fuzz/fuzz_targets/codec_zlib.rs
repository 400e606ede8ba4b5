//! zlib streams: compares libdeflate and zlib-rs.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::Zlib;
        block.check(encoding, include_bytes!("../sound/zlib"), include_bytes!("../sound/data"));
    }
});
