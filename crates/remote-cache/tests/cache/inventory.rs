//! Reports of the cache, and removal on request.

use std::{fs::File, os::unix::fs::FileExt};

use floe_remote_cache::{CHUNK_BYTES, CheckReport, Digest, Trust};

use crate::scene::{Kind, Object, Scene, Server, open, read_all};

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
        data.write_all_at(b"rotten", 2 * CHUNK_BYTES + 77).expect("written");
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
    let unknown = scene.directory.path().join("v1/objects/ab").join("ab".repeat(32));
    std::fs::create_dir_all(&unknown).expect("made");
    std::fs::write(unknown.join("data"), vec![1; 1 << 20]).expect("written");
    let (before, after) = cache.prune(u64::MAX).expect("pruned");
    assert!(before >= 5 << 20 && after < 65_536, "{before} bytes before, {after} after");
    assert!(!unknown.exists() && cache.list().is_empty());
}
