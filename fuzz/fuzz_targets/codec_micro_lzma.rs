//! MicroLZMA streams.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::MicroLzma { padding: block.padding, dictionary_bytes: block.limit % (1 << 20) };
        block.check(encoding, include_bytes!("../sound/micro_lzma"), include_bytes!("../sound/data"));
    }
});
