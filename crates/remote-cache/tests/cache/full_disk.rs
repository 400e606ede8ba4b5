//! Writes that do not end: a full disk, a cache that cannot be written, a loss of power.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    process::Command,
    sync::Arc,
};

use floe_image::ImageSource;
use floe_remote_cache::{Cache, CacheOptions};
use floe_testkit::{
    Random,
    skip::{Need, ready},
};

use crate::scene::{Kind, Object, Scene, Server, cache_in, number_from, open, read_all, read_parts};

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

/// How many power losses there are for each kind of verification, unless `FLOE_POWER_LOSSES` says so.
const LOSSES: usize = 15;

/// The size of a page of the page cache, and of a disk sector for the map, in bytes.
const PAGE: u64 = 4096;
const SECTOR: u64 = 512;

/// Copies the cache as a power loss leaves it: some data pages are missing, the map is torn, small files are truncated.
fn copy_torn(from: &Path, to: &Path, random: &mut Random) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let target = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copy_torn(&entry, &target, random);
            continue;
        }
        fs::copy(&entry, &target).expect("copied");
        let file = File::options().write(true).open(&target).expect("it opens");
        let len = file.metadata().expect("a length").len();
        let (unit, losses) = match entry.file_name().and_then(|name| name.to_str()) {
            Some("data") => (PAGE, random.below(9)),
            Some("map") => (SECTOR, random.below(4)),
            _ => (SECTOR, u64::from(random.below(4) == 0)),
        };
        for _ in 0..losses.min(len) {
            let lost = vec![if random.below(3) == 0 { 0xA5 } else { 0 }; unit as usize];
            file.write_all_at(&lost, random.below(len) / unit * unit).expect("written");
        }
        match random.below(8) {
            0 => file.set_len(random.below(len + 1)).expect("cut"),
            _ => file.set_len(len).expect("as long as before"),
        }
    }
}

#[test]
fn nothing_wrong_is_read_after_a_power_loss() {
    for kind in Kind::ALL {
        let object = Object::new(kind, (5 << 20) + 5000, 21);
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..number_from("FLOE_POWER_LOSSES", LOSSES) as u64 {
            let mut random = Random::new(seed);
            let (before, after) = (Scene::new(), Scene::new());
            let server = Server::of(&object);
            let source = open(&before.cache(), &object, &server).expect("it opens");
            let (_, errors) = read_parts(&source, object.data(), &mut random, 30);
            assert!(errors.is_empty(), "{errors:?}");
            copy_torn(before.directory.path(), after.directory.path(), &mut random);
            let fetched_before = server.data_bytes();

            let cache = after.cache_of(1 << 30, "second boot");
            server.set_down(true);
            if let Ok(offline) = open(&cache, &object, &server) {
                // Each read is correct, or an error.
                read_parts(&offline, object.data(), &mut random, 20);
            }
            server.set_down(false);
            let online = open(&cache, &object, &server).expect("it opens");
            assert!(read_all(&online).expect("all of it") == object.data(), "{kind:?}, loss {seed}");
            let fetched = server.data_bytes() - fetched_before;
            kept += object.key.data_len() - fetched;
            lost += fetched;
            assert!(online.is_whole());
            server.set_down(true);
            let offline = open(&after.cache_of(1 << 30, "third boot"), &object, &server).expect("it opens");
            assert!(read_all(&offline).expect("all of it") == object.data(), "{kind:?}, loss {seed}, once more");
            assert_eq!(offline.len(), object.key.data_len());
        }
        assert!(kept > lost / 10 && lost > 0, "{kind:?}: {kept} bytes were kept, {lost} fetched again");
    }
}
