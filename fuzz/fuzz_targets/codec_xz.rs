//! .xz streams.
#![no_main]

use floe_fuzz::Block;
use floe_image::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = Block::new(bytes) {
        let encoding = Encoding::Xz { dictionary_bytes: block.limit % (1 << 21) };
        block.check(encoding, include_bytes!("../sound/xz"), include_bytes!("../sound/data"));
    }
});
