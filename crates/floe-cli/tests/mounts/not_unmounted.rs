//! Signals to programs whose mount cannot be unmounted now: another mount covers it, or the process that unmounts is gone.

use std::{
    fs,
    io::Read,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
};
use rustix::{
    fs::{Mode, OFlags, open, openat},
    mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_move, unmount},
    process::{Signal, kill_process},
};
use tempfile::NamedTempFile;

use crate::support::{
    front,
    program::{Place, Serving, demo, floe, floe_with_messages_in, run, told, umount, until},
};

/// A mount of the demo image, and a file with the messages of the program that serves it.
struct Observed {
    serving: Serving,
    messages: NamedTempFile,
}

impl Observed {
    fn new(arguments: &[&str]) -> Self {
        let (place, messages) = (Place::new(), NamedTempFile::new().expect("a file"));
        let mut command = floe_with_messages_in(messages.path());
        command.arg("mount").arg(demo()).arg(&place.path).args(arguments);
        Self { serving: Serving::start(command, place), messages }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.messages.path()).expect("ours")
    }

    fn until_it_says(&self, words: &str) {
        until(words, || self.said().contains(words));
    }

    /// Mounts another file system on the same directory. The place unmounts it too.
    fn cover(&self) {
        mount("cover", &self.serving.place.path, "tmpfs", MountFlags::empty(), None).expect("a mount");
    }

    fn uncover(&self) {
        unmount(&self.serving.place.path, UnmountFlags::empty()).expect("an unmount");
    }
}

/// Whether a file of the mount can be read that was not read before.
fn is_served(root: &OwnedFd, name: &str) -> bool {
    let file = openat(root, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    file.is_ok_and(|file| rustix::io::read(file, &mut [0; 16]) == Ok(16))
}

/// With and without a sandbox, and, where the kernel can, with its EROFS in front.
fn rows() -> Vec<&'static [&'static str]> {
    let mut rows: Vec<&[&str]> = vec![&["-o", "front=fuse"], &["-o", "front=fuse", "--sandbox=off"]];
    if front::ready() {
        rows.extend([&["-o", "front=kernel"][..], &["-o", "front=kernel", "--sandbox=off"]]);
    }
    rows
}

/// Whether the mount on a directory is one without a server.
fn is_dead(directory: &Path) -> bool {
    // Statistics are never cached, and a front has some of its own.
    rustix::fs::statfs(directory).is_err() || fs::read(directory.join("guide/reading.txt")).is_err()
}

#[test]
fn a_covered_mount_is_served_until_it_is_uncovered() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for row in rows() {
        let mut observed = Observed::new(row);
        let path = observed.serving.place.path.clone();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&path, flags, Mode::empty()).expect("it is mounted");
        observed.cover();
        observed.serving.signal(Signal::TERM);
        observed.until_it_says("is covered by another mount; still serving until it is uncovered; signal again");
        thread::sleep(Duration::from_millis(300));
        assert!(observed.serving.is_running() && is_served(&root, "README.txt"), "{row:?}: {}", observed.said());
        drop(root);
        observed.serving.place.wait_until_unused();
        assert_eq!(observed.said().lines().count(), 1, "{row:?}: {}", observed.said());
        observed.uncover();
        assert_eq!(observed.serving.end().0.code(), Some(0), "{row:?}: {}", observed.said());
        assert!(!observed.serving.place.is_mounted(), "{row:?}: {}", observed.said());
    }
}

/// How the files of a mount are mounted elsewhere too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Elsewhere {
    Bound,
    Moved,
    InAnotherNamespace,
}

#[test]
fn files_that_are_mounted_elsewhere_too_are_served_after_a_signal() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scenes = [Elsewhere::Bound, Elsewhere::Moved, Elsewhere::InAnotherNamespace];
    let rows: Vec<_> = rows().into_iter().flat_map(|row| scenes.map(|elsewhere| (row, elsewhere))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(arguments, elsewhere)| {
            let (mut observed, other) = (Observed::new(arguments), Place::new());
            let source = observed.serving.place.path.clone();
            let namespace = (*elsewhere == Elsewhere::InAnotherNamespace).then(|| {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", "echo; read _; cat \"$0/README.txt\""]).arg(&source);
                let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
                child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it has its namespace");
                child
            });
            match elsewhere {
                Elsewhere::Bound => mount_bind(&source, &other.path).expect("a mount"),
                Elsewhere::Moved => mount_move(&source, &other.path).expect("a mount"),
                Elsewhere::InAnotherNamespace => {}
            }
            observed.serving.signal(Signal::TERM);
            let named = if namespace.is_some() { "namespace" } else { other.path.to_str().expect("text") };
            observed.until_it_says(&format!("{named}; still serving; signal again to stop now"));
            let read = match namespace {
                Some(child) => child.wait_with_output().expect("it ends").stdout,
                None => {
                    let read = fs::read(other.file("README.txt")).unwrap_or_default();
                    // A program that another test is starting may still hold copies of this process's descriptors.
                    until("it is unmounted", || unmount(&other.path, UnmountFlags::empty()).is_ok());
                    read
                }
            };
            let (status, _) = observed.serving.end();
            let mut told = Vec::new();
            if read.is_empty() {
                told.push("nothing is read".to_owned());
            }
            if !status.success() {
                told.push(format!("it ended with {status}: {}", observed.said()));
            }
            told
        },
    );
}

#[test]
fn a_second_signal_ends_a_server_that_cannot_unmount() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for row in rows() {
        let mut observed = Observed::new(row);
        let path = observed.serving.place.path.clone();
        observed.cover();
        observed.serving.signal(Signal::TERM);
        observed.until_it_says("is covered by another mount");
        observed.serving.signal(Signal::TERM);
        assert_eq!(observed.serving.end().0.code(), Some(1), "{row:?}: {}", observed.said());
        assert!(observed.said().contains("the connection is aborted"), "{row:?}: {}", observed.said());
        observed.uncover();
        assert!(observed.serving.place.is_mounted() && is_dead(&path), "{row:?}");
        assert_eq!(umount(&path), (Some(0), String::new()), "{row:?}");
    }
}

#[test]
fn a_signal_ends_a_mount_whose_keeper_was_killed() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for row in rows() {
        for is_used in [false, true] {
            let mut observed = Observed::new(row);
            let path = observed.serving.place.path.clone();
            kill_process(observed.serving.keeper(), Signal::KILL).expect("it runs");
            assert!(!fs::read(path.join("README.txt")).expect("it is served").is_empty());
            let file = is_used.then(|| fs::File::open(path.join("guide/reading.txt")).expect("it is served"));
            if !is_used {
                observed.serving.place.wait_until_unused();
            }
            observed.serving.signal(Signal::TERM);
            if let Some(mut file) = file {
                until("it is detached", || !observed.serving.place.is_mounted());
                assert!(file.read(&mut [0; 16]).is_ok_and(|len| len == 16), "{row:?}: it is served on");
            }
            let said = observed.serving.end();
            assert_eq!(said.0.code(), Some(0), "{row:?} {is_used}: {}", observed.said());
            assert!(!observed.serving.place.is_mounted(), "{row:?} {is_used}: {}", observed.said());
        }
    }
}

#[test]
fn a_mount_whose_keeper_was_killed_is_unmounted_from_outside_too() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for row in rows() {
        let mut observed = Observed::new(row);
        kill_process(observed.serving.keeper(), Signal::KILL).expect("it runs");
        observed.serving.place.wait_until_unused();
        assert_eq!(umount(&observed.serving.place.path), (Some(0), String::new()), "{row:?}");
        assert_eq!(observed.serving.end().0.code(), Some(0), "{row:?}: {}", observed.said());
    }
}

#[test]
fn a_mount_outlives_its_keepers() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for is_signalled_again in [false, true] {
        let mut observed = Observed::new(&["-o", "front=fuse"]);
        let path = observed.serving.place.path.clone();
        for keeper in [observed.serving.standby(), observed.serving.keeper()] {
            kill_process(keeper, Signal::KILL).expect("it runs");
        }
        assert!(!fs::read(path.join("README.txt")).expect("it is served").is_empty());
        let status = run(floe().arg("status").arg(&path));
        assert_eq!(told(&status), (Some(0), String::new()));
        observed.serving.signal(Signal::TERM);
        observed.until_it_says("the process that unmounts has ended: run floe umount");
        assert!(!fs::read(path.join("guide/reading.txt")).expect("it is served").is_empty());
        assert!(observed.serving.is_running() && observed.serving.place.is_mounted());
        if is_signalled_again {
            observed.serving.signal(Signal::TERM);
            assert_eq!(observed.serving.end().0.code(), Some(1), "{}", observed.said());
            assert!(observed.said().contains("a dead mount is left"), "{}", observed.said());
        }
        observed.serving.place.wait_until_unused();
        assert_eq!(umount(&path), (Some(0), String::new()));
        if !is_signalled_again {
            assert_eq!(observed.serving.end().0.code(), Some(0), "{}", observed.said());
        }
    }
}
