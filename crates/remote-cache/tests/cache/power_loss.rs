//! Power losses: the disk has any mixture of old and new pages, and the machine has restarted.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

use floe_image::ImageSource;
use floe_testkit::Random;

use crate::scene::{Kind, Object, Scene, Server, number_from, open, read_all, read_parts};

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
