//! A map of any bytes in the cache: chunks that it calls present are what they should be, with the server and without.
#![no_main]

use std::{fs, sync::LazyLock};

use floe_fuzz::remote_cache::SampleObject;
use libfuzzer_sys::fuzz_target;

static OBJECT: LazyLock<(SampleObject, tempfile::TempDir)> =
    LazyLock::new(|| (SampleObject::sound(), tempfile::tempdir().expect("a folder")));

fuzz_target!(|input: &[u8]| {
    let (object, folder) = &*OBJECT;
    let cache = SampleObject::cache(folder.path());
    if let Ok(source) = object.open(&cache, false) {
        object.read_source(&source);
    }
    fs::write(object.directory(folder.path()).join("map"), input).expect("written");
    for is_down in [true, false] {
        if let Ok(source) = object.open(&cache, is_down) {
            object.read_source(&source);
        }
    }
});
