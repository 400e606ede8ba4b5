//! Directories in which other users could put files: the cache refuses them, and follows no links.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    sync::Arc,
};

use floe_remote_cache::{Cache, CacheOptions};
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
        let version = folder.path().join("v1");
        fs::create_dir(&version).expect("made");
        fs::set_permissions(&version, fs::Permissions::from_mode(mode)).expect("set");
        let message = refused(folder.path());
        assert!(message.contains("others may write") && message.contains("v1"), "{mode:o}: {message}");
        assert_eq!(fs::read_dir(&version).expect("a folder").count(), 0, "nothing is created there");
    }
}

#[test]
fn directories_of_others_and_links_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (version, elsewhere) = (folder.path().join("v1"), folder.path().join("elsewhere"));
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
    let state = folder.path().join("v1/state");
    fs::remove_file(&state).expect("removed");
    fs::write(&other, "text").expect("written");
    symlink(&other, &state).expect("linked");
    refused(folder.path());
    assert_eq!(fs::read(&other).expect("read"), b"text");
}
