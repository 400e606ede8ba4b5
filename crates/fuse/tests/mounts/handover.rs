//! A mount whose connection one server hands over to another.

use std::{fs, os::fd::OwnedFd, os::unix::fs::FileExt, sync::Arc, thread, time::Duration};

use floe_fuse::{Ended, Handover, Inherited, Mount, MountOptions, Mountpoint, PauseError};

use crate::support::{Gate, Numbering, PATIENCE, TreeFileSystem, can_mount, reader, until, within};

const FILE_BYTES: usize = 1 << 20;

fn tree() -> Arc<TreeFileSystem> {
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for index in 0..4u8 {
        tree.file(&index.to_string(), &vec![index + 1; FILE_BYTES]);
    }
    Arc::new(tree)
}

/// A server of the same mount, with a source of its own.
fn successor(handover: &Handover, directory: &std::path::Path, gate: &Arc<Gate>, options: &MountOptions) -> Mount {
    let copies = handover.devices().into_iter().map(|device| device.try_clone_to_owned().expect("a descriptor"));
    let devices: Vec<OwnedFd> = copies.collect();
    let directory = directory.canonicalize().expect("it is there");
    let inherited = Inherited { devices, auto_unmount: None, directory, place: None, terms: handover.terms() };
    Mount::new(reader(&tree(), gate), inherited, options).expect("threads")
}

fn read(path: &std::path::Path) -> Vec<u8> {
    let path = path.to_owned();
    within(move || fs::read(path)).expect("data")
}

#[test]
fn requests_in_progress_are_answered_by_the_next_server() {
    if !can_mount() {
        return;
    }
    for (clone_fd, next_clone_fd) in [(false, false), (true, true), (true, false), (false, true)] {
        let options = |clone_fd| MountOptions { clone_fd, deadline: None, ..MountOptions::default() };
        let directory = tempfile::Builder::new().prefix("floe-fuse-").tempdir().expect("a directory");
        let gate = Arc::new(Gate::default());
        let mountpoint = Mountpoint::find(directory.path()).expect("a directory");
        let mount = Mount::new(reader(&tree(), &gate), mountpoint, &options(clone_fd)).expect("a mount");
        let unmounter = mount.unmounter();
        let handover = mount.handover().expect("it can be handed over");
        assert!(read(&directory.path().join("0")) == vec![1; FILE_BYTES]);
        if !handover.terms().can_resend() {
            floe_testkit::skip::skipped("the kernel cannot resend requests");
            return;
        }
        // The source of this server does not come back.
        gate.close();
        let counts = mount.request_counts();
        let reads_before = counts.of(floe_fuse::RequestKind::Read);
        let file = fs::File::open(directory.path().join("1")).expect("it is there");
        let stuck = thread::spawn(move || {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, 8192).map(|()| bytes)
        });
        until("the read arrives", || counts.of(floe_fuse::RequestKind::Read) > reads_before);
        let next = successor(&handover, directory.path(), &Arc::default(), &options(next_clone_fd));
        let paused = handover.pause(Duration::from_millis(20)).expect("the kernel can resend the read");
        assert_eq!(handover.pause(Duration::ZERO).err(), Some(PauseError::Busy));
        paused.finish();
        let next = next.serve().expect("the connection is alive");
        let bytes = within(move || stuck.join().expect("no panic"));
        assert!(bytes.expect("the next server replies") == vec![2; 4096], "{clone_fd} {next_clone_fd}");
        assert!(matches!(mount.wait(), Ended::HandedOver));
        assert!(unmounter.unmount(floe_keeper::Detach::Never).is_err(), "it is not this server's any more");
        assert!(read(&directory.path().join("2")) == vec![3; FILE_BYTES]);
        gate.open();
        assert!(read(&directory.path().join("3")) == vec![4; FILE_BYTES]);
        next.unmounter().unmount(floe_keeper::Detach::Lazily).expect("it is mounted");
        assert!(matches!(within(|| next.wait()), Ended::Unmounted));
    }
}

#[test]
fn a_server_goes_on_if_the_next_one_gives_up() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::Builder::new().prefix("floe-fuse-").tempdir().expect("a directory");
    let gate = Arc::new(Gate::default());
    let mountpoint = Mountpoint::find(directory.path()).expect("a directory");
    let options = MountOptions::default();
    let mount = Mount::new(reader(&tree(), &gate), mountpoint, &options).expect("a mount");
    let handover = mount.handover().expect("it can be handed over");
    for round in 0..20usize {
        let next = successor(&handover, directory.path(), &gate, &options);
        let paused = handover.pause(PATIENCE).expect("nothing is in progress");
        let path = directory.path().join((round % 4).to_string());
        let waiting = thread::spawn(move || {
            let file = fs::File::open(&path)?;
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            fs::read(path)
        });
        drop(next);
        drop(paused);
        let bytes = within(move || waiting.join().expect("no panic")).expect("data");
        assert!(bytes == vec![round as u8 % 4 + 1; FILE_BYTES]);
    }
    mount.unmounter().unmount(floe_keeper::Detach::Lazily).expect("it is still this server's");
    assert!(matches!(within(|| mount.wait()), Ended::Unmounted));
}
