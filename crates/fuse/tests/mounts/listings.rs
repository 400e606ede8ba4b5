//! Listings of directories, with attributes and without.

use std::{
    fs,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use floe_fuse::{Readdir, RequestKind};
use floe_testkit::keep_kernel_caches;

use crate::{
    serving::{entries, options},
    support::{Fault, Numbering, TestMount, TreeFileSystem, can_mount},
};

/// A tree with `directories` directories of `files` files each.
fn wide(directories: usize, files: usize) -> TreeFileSystem {
    let mut tree = TreeFileSystem::new(Numbering::Learnt);
    for directory in 0..directories {
        tree.directory(&directory.to_string());
        for file in 0..files {
            tree.file(&format!("{directory}/{file:05}"), &[]);
        }
    }
    tree
}

/// Walks the tree. Returns the number of files, and the number of lookups that the walk took.
fn walk(mount: &TestMount, directories: usize, stats: bool) -> (usize, u64) {
    let lookups = || mount.counts().of(RequestKind::Lookup);
    let before = lookups();
    let mut found = 0;
    for directory in 0..directories {
        let path = mount.file(&directory.to_string());
        for (name, _) in entries(&path).iter().filter(|(name, _)| !name.starts_with('.')) {
            found += 1;
            if stats {
                fs::symlink_metadata(path.join(name)).expect("attributes");
            }
        }
    }
    (found, lookups() - before)
}

#[test]
fn listings_include_attributes_if_they_are_used() {
    if !can_mount() {
        return;
    }
    let _kept = keep_kernel_caches();
    const DIRECTORIES: usize = 20;
    const FILES: usize = 1000;
    const ALL: u64 = (DIRECTORIES * FILES) as u64;
    for (readdir, stats, attr_max, lookup_max) in [
        // Programs besides the tests may make the kernel drop caches.
        (Readdir::Adaptive, false, ALL / 4, 1000),
        (Readdir::Adaptive, true, 2 * ALL, ALL / 2),
        (Readdir::Plus, false, 2 * ALL, 1000),
        (Readdir::Plain, true, 2 * ALL, 2 * ALL),
    ] {
        let mount = TestMount::new(wide(DIRECTORIES, FILES), &options(readdir));
        let (found, lookups) = walk(&mount, DIRECTORIES, stats);
        let attrs = mount.tree.calls.attr.load(Relaxed);
        assert_eq!(found as u64, ALL);
        assert!(attrs <= attr_max && lookups <= lookup_max, "{readdir:?} {stats}: {attrs} attr, {lookups} lookups");
        assert!((attrs >= ALL) == (stats || readdir == Readdir::Plus), "{readdir:?} {stats}: {attrs} attr");
    }
}

#[test]
fn the_next_part_of_a_long_directory_is_listed_in_advance() {
    if !can_mount() {
        return;
    }
    const FILES: usize = 20_000;
    let mount = TestMount::new(wide(1, FILES), &options(Readdir::Adaptive));
    let directory = fs::File::open(mount.file("0")).expect("a directory");
    let calls = || mount.tree.calls.read_dir.load(Relaxed);
    let requests = || mount.counts().of(RequestKind::Readdirplus);
    let (mut names, mut buffer) = (Vec::new(), Vec::with_capacity(32 << 10));
    let mut entries = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
    // Calls and requests in the first half of the directory.
    let mut half = None;
    let mut called = 0;
    while let Some(entry) = entries.next() {
        names.push(entry.expect("an entry").file_name().to_str().expect("UTF-8").to_owned());
        // By then, the lister has no credit for attributes.
        if entries.is_buffer_empty() && names.len() > FILES / 2 {
            half.get_or_insert_with(|| (settled(&calls), requests()));
            let began = Instant::now();
            while called > 0 && calls() == called {
                assert!(began.elapsed() < Duration::from_secs(60), "no further part is listed");
                thread::yield_now();
            }
            called = calls();
        }
    }
    names.retain(|name| !name.starts_with('.'));
    assert!(names.into_iter().eq((0..FILES).map(|file| format!("{file:05}"))));
    let (calls_before, requests_before) = half.expect("the directory is long");
    assert!(calls_before > requests_before, "nothing is listed in advance");
    let (calls, requests) = (calls() - calls_before, requests() - requests_before);
    // On a busy machine, a request may come before its part was listed, which is then listed twice.
    assert!(requests > 10 && calls <= requests + requests / 4, "{calls} parts listed for {requests} requests");
}

/// The value of a counter once it has stopped.
fn settled(count: &impl Fn() -> u64) -> u64 {
    loop {
        let before = count();
        thread::sleep(Duration::from_millis(1000));
        if count() == before {
            return before;
        }
    }
}

#[test]
fn listing_corrupt_entries_makes_the_kernel_forget_nothing() {
    if !can_mount() {
        return;
    }
    let _kept = keep_kernel_caches();
    let mut tree = wide(1, 100);
    for index in 0..100 {
        let file = tree.file(&format!("0/corrupt-{index}"), &[]);
        tree.fault(file, Fault::CorruptAttr);
    }
    let mount = TestMount::new(tree, &options(Readdir::Plus));
    assert_eq!(walk(&mount, 1, false).0, 200);
    assert_eq!(mount.counts().of(RequestKind::Forget), 0);
}
