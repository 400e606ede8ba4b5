//! Support for all tests of the program.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]
pub(crate) mod container_image;
pub(crate) mod container_root;
pub(crate) mod front;
pub(crate) mod hostile_erofs;
pub(crate) mod hostile_squashfs;
pub(crate) mod meter;
pub(crate) mod mirror;
pub(crate) mod mkfs_erofs;
pub(crate) mod plain_server;
pub(crate) mod program;
mod served;
pub(crate) mod servers;
pub(crate) mod service;
pub(crate) mod unsquashfs;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use floe_testkit::corpus::{Corpus, CorruptImage, ImageRecord, Materialised};
#[allow(unused_imports, reason = "not every test mounts")]
pub(crate) use served::Served;

/// The reference images that this run reads.
pub(crate) fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    let mut images = corpus.sample();
    // Images that take longest are first.
    images.sort_by_key(|image| !image.huge);
    images
}

/// The corrupted images; if `FLOE_IMAGE` is set, only those with it in their names.
pub(crate) fn corrupt_images(corpus: &Corpus) -> Vec<CorruptImage> {
    corpus.corrupt_images().into_iter().filter(|image| is_chosen(&image.name)).collect()
}

/// The options for the offset and the extra devices of an image.
pub(crate) fn image_arguments(image: &Materialised) -> Vec<OsString> {
    let mut arguments = Vec::new();
    if image.offset > 0 {
        arguments.extend(["--offset".into(), image.offset.to_string().into()]);
    }
    for device in &image.devices {
        arguments.extend(["--device".into(), device.into()]);
    }
    arguments
}

/// The directory for extracted trees of this size: in memory if there is room, which is fast, and where attributes can have
/// any size, whereas ext4 has one block for them.
pub(crate) fn scratch(bytes: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|said| said.f_bavail * said.f_frsize >= bytes);
    if has_room { memory.to_owned() } else { env::temp_dir() }
}

fn is_chosen(name: &str) -> bool {
    env::var("FLOE_IMAGE").map_or(true, |chosen| name.contains(&chosen))
}
