//! Directories in which other users could put files: the cache refuses them, and follows no links.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, lchown, symlink},
    path::Path,
    sync::Arc,
};

use floe_remote_cache::{Cache, CacheOptions, Digest};
use floe_testkit::skip::{Need, ready};

/// An unprivileged user.
const NOBODY: u32 = 65534;

/// The message of the error that opening a cache in `directory` gives.
fn refused(directory: &Path) -> String {
    let opened = Cache::open(CacheOptions::new(directory, Arc::new(|_| {})));
    opened.expect_err("others could change the cache").to_string()
}

#[test]
fn directories_that_others_may_write_are_refused() {
    for mode in [0o777, 0o720, 0o1702] {
        let folder = tempfile::tempdir().expect("a folder");
        let version = folder.path().join("v2");
        fs::create_dir(&version).expect("made");
        fs::set_permissions(&version, fs::Permissions::from_mode(mode)).expect("set");
        let message = refused(folder.path());
        assert!(message.contains("others may write") && message.contains("v2"), "{mode:o}: {message}");
        assert_eq!(fs::read_dir(&version).expect("a folder").count(), 0, "nothing is created there");
    }
}

#[test]
fn directories_of_others_and_links_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (version, elsewhere) = (folder.path().join("v2"), folder.path().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("made");
    symlink(&elsewhere, &version).expect("linked");
    assert!(refused(folder.path()).contains("not a directory"));
    fs::remove_file(&version).expect("removed");
    if ready(&[Need::Root]) {
        fs::create_dir(&version).expect("made");
        chown(&version, Some(NOBODY), None).expect("given away");
        assert!(refused(folder.path()).contains("another user"));
    }
}

#[test]
fn the_state_is_no_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let (other, options) = (folder.path().join("other"), CacheOptions::new(folder.path(), Arc::new(|_| {})));
    drop(Cache::open(options.clone()).expect("a cache"));
    let state = folder.path().join("v2/state");
    fs::remove_file(&state).expect("removed");
    fs::write(&other, "text").expect("written");
    symlink(&other, &state).expect("linked");
    refused(folder.path());
    assert_eq!(fs::read(&other).expect("read"), b"text");
}

/// Creates a directory with these permissions.
fn directory(path: &Path, mode: u32) {
    fs::create_dir(path).expect("made");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

/// Opens a cache in `path` and returns the message of the error; none if the cache is usable.
fn message(path: &Path) -> Option<String> {
    let cache = match Cache::open(CacheOptions::new(path, Arc::new(|_| {}))) {
        Ok(cache) => cache,
        Err(error) => return Some(error.to_string()),
    };
    cache.keep_blob(&Digest::of(b"text"), b"text");
    assert_eq!(cache.blob(&Digest::of(b"text"), 10).as_deref(), Some(&b"text"[..]), "{}", path.display());
    None
}

#[test]
fn no_directory_above_the_cache_is_writable_by_others() {
    for (mode, problem) in [
        (0o777, Some("others may write to it (mode 0777")),
        (0o775, Some("others may write to it (mode 0775")),
        (0o757, Some("others may write to it (mode 0757")),
        (0o2770, Some("others may write to it (mode 2770")),
        (0o1777, None),
        (0o1770, None),
        (0o755, None),
        (0o700, None),
    ] {
        for below in ["", "cache", "two/missing directories", "cache/../cache", "./cache/."] {
            let folder = tempfile::tempdir().expect("a folder");
            let above = folder.path().join("above");
            directory(&above, mode);
            let message = message(&above.join(below));
            assert_eq!(message.is_some(), problem.is_some(), "{mode:o} {below}: {message:?}");
            if let (Some(message), Some(problem)) = (message, problem) {
                let named = format!("{}: {problem}", above.display());
                assert!(message.starts_with(&named) && message.contains("chmod go-w"), "{mode:o} {below}: {message}");
                assert_eq!(fs::read_dir(&above).expect("a folder").count(), 0, "nothing is created there");
            }
        }
    }
}

#[test]
fn no_directory_above_the_cache_belongs_to_another_user() {
    if !ready(&[Need::Root]) {
        return;
    }
    for (mode, below) in [(0o755, "cache"), (0o700, "cache"), (0o1777, "cache"), (0o700, ""), (0o755, "own/cache")] {
        let folder = tempfile::tempdir().expect("a folder");
        let above = folder.path().join("above");
        directory(&above, mode);
        directory(&above.join("own"), 0o700);
        chown(&above, Some(NOBODY), None).expect("given away");
        let message = message(&above.join(below)).expect("its owner can exchange v2");
        let named = format!("{}: it belongs to another user (user ID {NOBODY})", above.display());
        assert!(message.starts_with(&named) && !message.contains('\n'), "{mode:o} {below}: {message}");
    }
}

#[test]
fn links_on_the_way_are_followed_as_far_as_they_can_be_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for (name, mode) in [("own", 0o700), ("open", 0o777), ("sticky", 0o1777), ("own/inner", 0o700)] {
        directory(&at(name), mode);
    }
    let linked = |link: &str, target: &str| symlink(target, at(link)).expect("linked");
    linked("relative", "own");
    linked("absolute", at("own").to_str().expect("text"));
    linked("own/up", "../sticky");
    linked("twice", "relative/inner");
    linked("to open", "open");
    linked("loop", "loop");
    linked("dangling", "own/new");
    linked("open/link", "../own");
    linked("sticky/link", "../own");
    fs::write(at("file"), "").expect("written");
    for (path, problem) in [
        ("relative/cache", None),
        ("absolute/cache", None),
        ("own/up/cache", None),
        ("twice/cache", None),
        ("twice/../../own/cache", None),
        ("sticky/link/cache", None),
        ("dangling/cache", None),
        ("to open/cache", Some("others may write")),
        ("open/link/cache", Some("others may write")),
        ("loop/cache", Some("loop")),
        ("file/cache", Some("file")),
    ] {
        let message = message(&at(path));
        assert_eq!(message.is_some(), problem.is_some(), "{path}: {message:?}");
        assert!(message.zip(problem).is_none_or(|(message, problem)| message.contains(problem)), "{path}");
    }
    if ready(&[Need::Root]) {
        lchown(at("sticky/link"), Some(NOBODY), None).expect("given away");
        directory(&at("own/of another"), 0o755);
        chown(at("own/of another"), Some(NOBODY), None).expect("given away");
        linked("to another", "own/of another");
        for path in ["sticky/link/cache", "to another/cache"] {
            assert!(refused(&at(path)).contains("another user"), "{path}");
        }
    }
}

#[test]
fn files_of_another_user_in_the_cache_are_not_read() {
    if !ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(CacheOptions::new(folder.path(), Arc::new(|_| {}))).expect("a cache");
    let digest = Digest::of(b"text");
    cache.remember("name", "first");
    cache.keep_blob(&digest, b"text");
    assert_eq!(cache.recall("name").as_deref(), Some("first"));
    let name = digest.to_string();
    let blob = folder.path().join("v2/blobs").join(&name[..2]).join(&name);
    chown(&blob, Some(NOBODY), None).expect("given away");
    assert_eq!(cache.blob(&digest, 10), None);
    fs::set_permissions(folder.path().join("v2/names"), fs::Permissions::from_mode(0o777)).expect("set");
    assert_eq!(cache.recall("name"), None);
}

#[test]
fn an_open_cache_stays_the_same_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let cache = Cache::open(CacheOptions::new(at("cache"), Arc::new(|_| {}))).expect("a cache");
    cache.remember("name", "first");
    let other = Cache::open(CacheOptions::new(at("other"), Arc::new(|_| {}))).expect("a cache");
    other.remember("name", "exchanged");
    fs::rename(at("cache"), at("moved")).expect("moved");
    fs::rename(at("other"), at("cache")).expect("moved");
    assert_eq!(cache.recall("name").as_deref(), Some("first"));
    fs::remove_dir_all(at("cache")).expect("removed");
    cache.remember("name", "second");
    assert_eq!(cache.recall("name").as_deref(), Some("second"));
    assert!(!at("cache").exists());
}
