//! A hash tree of any bytes, in front of data of which a part is taken from the tree: what verifies is what was hashed.
#![no_main]

use std::sync::LazyLock;

use floe_fuzz::remote_cache::SampleObject;
use libfuzzer_sys::fuzz_target;

static OBJECT: LazyLock<SampleObject> = LazyLock::new(SampleObject::sound);

fuzz_target!(|input: &[u8]| {
    if let Some(bytes) = OBJECT.with_tree(input) {
        OBJECT.read(bytes);
    }
});
