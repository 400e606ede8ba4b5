//! A full disk, and a cache that cannot be written.

use std::{fs, os::unix::fs::PermissionsExt, process::Command, sync::Arc};

use floe_image::ImageSource;
use floe_remote_cache::{Cache, CacheOptions};
use floe_testkit::skip::{Need, ready};

use crate::scene::{Kind, Object, Scene, Server, cache_in, open, read_all};

/// A file system in memory with a limited size, unmounted on drop.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "floe-test"]).arg(folder.path()).status();
        assert!(mounted.expect("mount runs").success());
        Self { folder }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

#[test]
fn a_full_disk_is_reported_once_and_does_not_stop_reads() {
    if !ready(&[Need::Root]) {
        return;
    }
    for kind in Kind::ALL {
        let object = Object::new(kind, 3 << 20, 41);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let disk = SmallDisk::new(1 << 20);
        let cache = cache_in(disk.folder.path(), 1 << 30, "first boot", &scene.notices);
        let source = open(&cache, &object, &server).expect("it opens");
        for _ in 0..2 {
            assert!(read_all(&source).expect("all of it") == object.data(), "{kind:?}");
        }
        let counts = source.counts();
        assert!(counts.uncached_chunks > 0, "{counts:?}");
        let notices = scene.notices.lock().expect("no panic").clone();
        let [notice] = &*notices else { panic!("{kind:?}: {notices:?}") };
        assert!(notice.contains("No space left on device"), "{notice}");
        assert!(notice.contains("continuing without the cache"), "{notice}");
        // Chunks that did fit remain correct.
        let other = open(&cache_in(disk.folder.path(), 1 << 30, "first boot", &scene.notices), &object, &server);
        assert!(read_all(&other.expect("it opens")).expect("all of it") == object.data());
    }
}

#[test]
fn small_reads_of_a_chunk_that_cannot_be_stored_cost_one_fetch() {
    if !ready(&[Need::Root]) {
        return;
    }
    let object = Object::new(Kind::Table, 512 << 10, 42);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let disk = SmallDisk::new(64 << 10);
    let cache = cache_in(disk.folder.path(), 1 << 30, "first boot", &scene.notices);
    let source = open(&cache, &object, &server).expect("it opens");
    for offset in (0..512 << 10).step_by(4096) {
        let mut output = [0; 4096];
        source.read_at(offset, &mut output).expect("it is served");
        assert_eq!(output, object.data()[offset as usize..][..4096]);
    }
    assert_eq!(server.requests(), 2);
}

#[test]
fn a_cache_that_cannot_be_made_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    Cache::open(CacheOptions::new(&file, Arc::new(|_| {}))).expect_err("it is a file");
}

#[test]
fn the_cache_is_its_users_alone() {
    let object = Object::new(Kind::Verity, 600_000, 43);
    let scene = Scene::new();
    let source = open(&scene.cache(), &object, &Server::of(&object)).expect("it opens");
    source.read_at(0, &mut [0]).expect("read");
    let directory = scene.object_directory(&object.key);
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for entry in fs::read_dir(&directory).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        assert_eq!(mode(&entry), 0o600, "{}", entry.display());
    }
}
