//! The size limit of the cache, reads while chunks are evicted, and the inventory.

use std::{fs::File, os::unix::fs::FileExt, thread, time::Duration};

use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{CheckReport, Digest, SECTION_BYTES, Trust};
use floe_testkit::Random;

use crate::scene::{Kind, Object, Scene, Server, open, read_all, read_parts};

/// The space of a cache on disk, in bytes.
fn allocated(scene: &Scene) -> u64 {
    scene.cache_of(u64::MAX, "first boot").list().iter().map(|object| object.allocated_bytes).sum()
}

#[test]
fn a_limit_below_the_working_set_is_kept_and_nothing_wrong_is_read() {
    const LIMIT: u64 = 2 << 20;
    const READERS: u64 = 6;
    let objects: Vec<Object> = Kind::ALL.into_iter().map(|kind| Object::new(kind, 2 << 20, 31 + kind as u64)).collect();
    let scene = Scene::new();
    let servers: Vec<_> = objects.iter().map(Server::of).collect();
    let (mut evicted, mut most) = (0, 0);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let (scene, objects, servers) = (&scene, &objects, &servers);
                // Each thread has its own cache, like another process.
                scope.spawn(move || {
                    let cache = scene.cache_of(LIMIT, "first boot");
                    let mut random = Random::new(reader);
                    let mut most = 0;
                    for round in 0..6 {
                        let which = (reader as usize + round) % objects.len();
                        let source = open(&cache, &objects[which], &servers[which]).expect("it opens");
                        let (_, errors) = read_parts(&source, objects[which].data(), &mut random, 60);
                        assert!(errors.is_empty(), "{errors:?}");
                        most = most.max(allocated(scene));
                    }
                    (cache.evicted_chunks(), most)
                })
            })
            .collect();
        for reader in readers {
            let (by_this_one, seen) = reader.join().expect("no panic");
            evicted += by_this_one;
            most = most.max(seen);
        }
    });
    assert!(evicted > 50, "{evicted} chunks were evicted");
    // Bytes that others reserved during an eviction may exceed the limit: one request per reader.
    assert!(most <= LIMIT + READERS * SECTION_BYTES * 2, "{most} bytes at a time");
    assert!(scene.notices.lock().expect("no panic").is_empty(), "{:?}", scene.notices);
}

#[test]
fn readers_of_chunks_that_go_never_get_zeros() {
    for kind in Kind::ALL {
        let object = Object::new(kind, 1 << 20, 32);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let cache = scene.cache();
        let sources: Vec<_> = (0..3).map(|_| open(&cache, &object, &server).expect("it opens")).collect();
        thread::scope(|scope| {
            let readers: Vec<_> = sources
                .iter()
                .enumerate()
                .map(|(reader, source)| {
                    let object = &object;
                    scope.spawn(move || {
                        let mut random = Random::new(reader as u64);
                        let (_, errors) = read_parts(source, object.data(), &mut random, 1500);
                        assert!(errors.is_empty(), "{errors:?}");
                        let mut output = vec![0; 4096];
                        for _ in 0..1500 {
                            let offset = random.below((1 << 20) - 4096);
                            if source.try_read_at(offset, &mut output).expect("inside") {
                                assert!(output == object.data()[offset as usize..][..4096], "wrong at {offset}");
                            }
                        }
                    })
                })
                .collect();
            let mut drops = 0;
            while readers.iter().any(|reader| !reader.is_finished()) {
                assert_eq!(cache.drop_object(&object.key.id()).expect("it is dropped"), Some(false), "it is open");
                drops += 1;
                thread::sleep(Duration::from_micros(300));
            }
            assert!(drops > 10, "{drops} drops");
        });
        assert!(server.data_bytes() > 2 << 20, "{kind:?}: chunks were evicted and fetched again");
    }
}

#[test]
fn pinned_chunks_go_last_and_used_ones_late() {
    const CHUNKS: u64 = 16;
    let object = Object::new(Kind::Table, (CHUNKS * SECTION_BYTES) as usize, 33);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let cache = scene.cache();
    let source = open(&cache, &object, &server).expect("it opens");
    source.pin(&[ByteRange::new(3 * SECTION_BYTES + 5, 1), ByteRange::new(9 * SECTION_BYTES, SECTION_BYTES + 1)]);
    assert!(read_all(&source).expect("all of it") == object.data());
    let pinned = |scene: &Scene| scene.cache().list()[0].pinned_chunks;
    assert_eq!(pinned(&scene), 3);
    for goal_chunks in [12, 8, 4] {
        let (_, after) = cache.prune(goal_chunks * SECTION_BYTES + 65_536).expect("pruned");
        assert!(after <= goal_chunks * SECTION_BYTES + 65_536);
        assert_eq!(pinned(&scene), 3, "down to {goal_chunks} chunks");
    }
    // Reads of pinned chunks send no requests.
    server.set_down(true);
    for chunk in [3, 9, 10] {
        source.read_at(chunk * SECTION_BYTES + 7, &mut [0; 9]).expect("it is still there");
    }
    cache.prune(0).expect("pruned");
    assert_eq!(scene.cache().list()[0].present_chunks, 0, "they are evicted in the end");
    source.read_at(3 * SECTION_BYTES, &mut [0]).expect_err("neither in the cache nor on the server");

    // Of two objects, the one in use stays.
    server.set_down(false);
    let (hot, cold) = (Object::new(Kind::Table, 1 << 20, 34), Object::new(Kind::Table, 1 << 20, 35));
    let cold_source = open(&cache, &cold, &Server::of(&cold)).expect("it opens");
    let hot_source = open(&cache, &hot, &Server::of(&hot)).expect("it opens");
    assert!(read_all(&cold_source).expect("read") == cold.data() && read_all(&hot_source).expect("read") == hot.data());
    // The first round of the hand clears the marks of both objects, and evicts one chunk of one of them.
    cache.prune((2 << 20) - 1).expect("pruned");
    let hot_again = open(&scene.cache(), &hot, &Server::of(&hot)).expect("it opens");
    assert!(read_all(&hot_again).expect("read") == hot.data());
    cache.prune((1 << 20) + 131_072).expect("pruned");
    let report = |object: &Object| scene.cache().list().into_iter().find(|report| report.id == object.key.id());
    assert_eq!(report(&hot).expect("it is there").present_chunks, 4);
    assert!(report(&cold).expect("it is there").present_chunks <= 1);
}

#[test]
fn objects_are_listed_checked_and_dropped() {
    for kind in Kind::ALL {
        let object = Object::new(kind, (1 << 20) + 9000, 61);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let cache = scene.cache();
        assert!(cache.list().is_empty());
        if let Trust::Table(root) = &object.key.trust {
            let table = root.table().expect("here already");
            cache.keep_blob(table.digest(), &table.to_bytes());
        }
        let source = open(&cache, &object, &server).expect("it opens");
        assert!(read_all(&source).expect("all of it") == object.data());
        let [report] = &*cache.list() else { panic!("one object") };
        let id = object.key.id();
        assert_eq!(
            (report.id, &*report.key, &*report.name),
            (id, &*object.key.to_string(), "https://example.org/image")
        );
        assert_eq!((report.is_verified, report.is_open, report.len), (kind != Kind::Location, true, object.key.len));
        assert_eq!((report.chunks, report.present_chunks, report.pinned_chunks), (report.chunks, report.chunks, 0));
        assert!((object.key.len..object.key.len + 65_536).contains(&report.allocated_bytes), "{report:?}");

        let check = |sound_chunks, removed_chunks| {
            let expected = CheckReport { sound_chunks, removed_chunks, unproven_chunks: 0 };
            for boot in ["first boot", "second boot"] {
                let found = scene.cache_of(1 << 30, boot).check(&id).expect("it is checked");
                if boot == "first boot" {
                    assert_eq!(found, Some(expected), "{kind:?}");
                }
            }
        };
        check(report.chunks, 0);
        let data =
            File::options().write(true).open(scene.object_directory(&object.key).join("data")).expect("the data");
        data.write_all_at(b"rotten", 2 * SECTION_BYTES + 77).expect("written");
        check(report.chunks - 1, 1);
        check(report.chunks - 1, 0);

        assert_eq!(cache.drop_object(&Digest::of(b"another")).expect("asked"), None);
        assert_eq!(cache.drop_object(&id).expect("dropped"), Some(false), "it is open");
        assert_eq!(cache.list()[0].present_chunks, 0);
        assert!(read_all(&source).expect("all of it") == object.data(), "its reader fetches again");
        drop(source);
        assert_eq!(cache.drop_object(&id).expect("dropped"), Some(true));
        assert!(cache.list().is_empty());
        let leftovers = cache.prune(0).expect("pruned");
        assert_eq!(leftovers.1, if kind == Kind::Table { leftovers.0 } else { 0 }, "blobs stay for 30 days");
    }
}

#[test]
fn space_of_killed_processes_is_freed() {
    let object = Object::new(Kind::Table, 4 << 20, 62);
    let scene = Scene::new();
    let cache = scene.cache();
    let source = open(&cache, &object, &Server::of(&object)).expect("it opens");
    drop(source);
    // Data without entries, as a process leaves it that ends between the two writes.
    let data = File::options().write(true).open(scene.object_directory(&object.key).join("data")).expect("the data");
    data.write_all_at(object.data(), 0).expect("written");
    // A directory with a description that does not parse.
    let unknown = scene.directory.path().join("v2/objects/ab").join("ab".repeat(32));
    std::fs::create_dir_all(&unknown).expect("made");
    std::fs::write(unknown.join("data"), vec![1; 1 << 20]).expect("written");
    let (before, after) = cache.prune(u64::MAX).expect("pruned");
    assert!(before >= 5 << 20 && after < 65_536, "{before} bytes before, {after} after");
    assert!(!unknown.exists() && cache.list().is_empty());
}
