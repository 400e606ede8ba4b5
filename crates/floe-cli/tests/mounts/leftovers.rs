//! Control sockets that killed mounts leave behind, in the directory that all of root's mounts share.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use floe_testkit::skip::{self, Need};
use rustix::{
    fs::{AtFlags, CWD, Timespec, Timestamps, utimensat},
    process::Signal,
};

use crate::support::program::{Serving, demo, floe, run, told, umount, until};

const SOCKETS: &str = "/run/floe";

/// What distinguishes a file from a later one under its name, which may get the same inode number.
type Identity = (u64, i64, i64);

/// The identity of a socket, if it is there.
fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The control socket of a mount, with its identity.
fn socket_of(serving: &Serving) -> (PathBuf, Identity) {
    let device = rustix::fs::stat(&serving.place.path).expect("a mount").st_dev;
    let name = format!("{}-{}.sock", rustix::fs::major(device), rustix::fs::minor(device));
    let path = Path::new(SOCKETS).join(name);
    let identity = identity(&path).expect("the mount listens");
    (path, identity)
}

/// A socket under this name, and its listener. As a mount does, it listens before the socket gets the name.
fn listening(name: &str, age_seconds: i64) -> (PathBuf, UnixListener) {
    let (path, first) = (Path::new(SOCKETS).join(name), Path::new(SOCKETS).join(format!("test-{name}")));
    let listener = UnixListener::bind(&first).expect("ours");
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let time = Timespec { tv_sec: now.tv_sec - age_seconds, tv_nsec: 0 };
    utimensat(CWD, &first, &Timestamps { last_access: time, last_modification: time }, AtFlags::SYMLINK_NOFOLLOW)
        .expect("ours");
    fs::rename(&first, &path).expect("ours");
    (path, listener)
}

#[test]
fn the_next_mount_removes_the_sockets_of_killed_mounts_and_no_others() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let arguments: [&str; 0] = [];
    let living = Serving::new(&demo(), arguments);
    let living_socket = socket_of(&living);
    // The next mount may get the number of one of them, and then replaces its socket.
    let to_kill: Vec<_> = (0..3).map(|_| Serving::new(&demo(), arguments)).collect();
    let killed: Vec<_> = to_kill
        .into_iter()
        .map(|mut serving| {
            let socket = socket_of(&serving);
            serving.signal(Signal::KILL);
            serving.end();
            assert_eq!(umount(&serving.place.path), (Some(0), String::new()));
            socket
        })
        .collect();

    // No mount has these numbers, and no process has these numbers.
    let kept = [("4095-1048570.sock", 0), ("4095-1048571.sock", 3600), ("new-4194999990", 3600), ("new-4194999991", 0)]
        .map(|(name, age)| listening(name, age));
    let young = Path::new(SOCKETS).join("new-4194999992");
    let _ = fs::remove_file(&young);
    drop(UnixListener::bind(&young));
    let leftovers =
        [("4095-1048572.sock", 0), ("new-4194999993", 3600), ("old-4194999994", 3600)].map(|(name, age)| {
            let (path, listener) = listening(name, age);
            drop(listener);
            path
        });
    let file = Path::new(SOCKETS).join("4095-1048573.sock");
    fs::write(&file, "no socket").expect("ours");

    let mut next = Serving::new(&demo(), arguments);
    assert_eq!(leftovers.map(|path| identity(&path)), [None; 3]);
    // A mount of somebody else may have the number of a killed one, and be about to replace its socket.
    until("the sockets are gone", || {
        let are_gone = killed.iter().all(|(path, old)| identity(path) != Some(*old));
        if !are_gone {
            next = Serving::new(&demo(), arguments);
        }
        are_gone
    });
    for (path, _listener) in &kept {
        assert!(fs::symlink_metadata(path).expect("a process listens").file_type().is_socket());
        fs::remove_file(path).expect("ours");
    }
    for path in [young, file] {
        assert!(identity(&path).is_some(), "{}", path.display());
        fs::remove_file(path).expect("ours");
    }
    assert_eq!(identity(&living_socket.0), Some(living_socket.1));
    for serving in [&living, &next] {
        let output = run(floe().arg("status").arg(&serving.place.path));
        assert_eq!(told(&output), (Some(0), String::new()));
    }
}
