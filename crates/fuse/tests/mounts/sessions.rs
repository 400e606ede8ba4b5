//! Mounts that share their session threads.

use std::{
    fs,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use floe_fuse::{EndSink, Ended, Inherited, Mount, MountHooks, MountOptions, MountSetup, PauseError};
use floe_keeper::Detach;

use crate::support::{
    Gate, Numbering, PATIENCE, SharedThreads, TestMount, TreeFileSystem, abort, can_mount, until, within,
};

const FILE_BYTES: usize = 300_000;

/// A tree of four files with bytes that differ between trees and files.
fn tree(number: usize) -> TreeFileSystem {
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    (0..4).for_each(|file| _ = tree.file(&file.to_string(), &content(number, file)));
    tree
}

fn content(number: usize, file: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|index| (index / 7 + number * 31 + file * 5) as u8).collect()
}

/// Reads all files of a mount.
fn read_all(mount: &TestMount, number: usize) {
    for file in 0..4 {
        let path = mount.file(&file.to_string());
        let bytes = within(move || fs::read(path)).expect("data");
        assert!(bytes == content(number, file), "file {file} of mount {number}");
    }
}

/// Reads a byte of a file past the page cache of its mount.
fn read_byte(mount: &TestMount, file: usize) -> std::io::Result<[u8; 1]> {
    let mut byte = [0];
    let file = fs::File::open(mount.file(&file.to_string()))?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    file.read_exact_at(&mut byte, 0).map(|()| byte)
}

#[test]
fn many_mounts_are_read_at_once_while_others_come_and_go() {
    if !can_mount() {
        return;
    }
    let shared = SharedThreads::start(3);
    let gate = Arc::<Gate>::default();
    let mounts: Vec<_> = (0..50).map(|number| shared.mount(tree(number), &gate, &MountOptions::default())).collect();
    thread::scope(|scope| {
        for chunk in 0..5 {
            let mounts = &mounts;
            scope.spawn(move || (0..50).skip(chunk).step_by(5).for_each(|number| read_all(&mounts[number], number)));
        }
        for number in 50..60 {
            let mut mount = shared.mount(tree(number), &gate, &MountOptions::default());
            read_all(&mount, number);
            mount.unmounter().unmount(Detach::Lazily).expect("it is mounted");
            let mount = mount.take();
            assert!(matches!(within(|| mount.wait()), Ended::Unmounted));
        }
    });
    // One thread waits for the ends of all.
    let (sender, ends) = mpsc::channel();
    let mut waited: Vec<_> = (60..64)
        .map(|number| {
            let sender = sender.clone();
            let ended: EndSink = Arc::new(move || _ = sender.send(number));
            let hooks = MountHooks { ended: Some(ended), ..MountHooks::default() };
            shared.mount(tree(number), &gate, MountSetup { hooks, ..MountSetup::default() })
        })
        .collect();
    for number in [62, 60, 63, 61] {
        waited[number - 60].unmounter().unmount(Detach::Lazily).expect("it is mounted");
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(number));
        let mount = waited[number - 60].take();
        assert!(matches!(within(|| mount.wait()), Ended::Unmounted));
    }
    // The threads outlive their owner's handle as long as a mount needs them.
    drop(shared);
    read_all(&mounts[7], 7);
}

#[test]
fn a_stuck_source_delays_no_other_mount() {
    if !can_mount() {
        return;
    }
    for thread_count in [2, 4] {
        let shared = SharedThreads::start(thread_count);
        let (gate, open) = (Arc::<Gate>::default(), Arc::<Gate>::default());
        gate.tells.store(true, Relaxed);
        let options = MountOptions { deadline: None, ..MountOptions::default() };
        let mut stuck: Vec<_> = (0..4).map(|number| shared.mount(tree(number), &gate, &options)).collect();
        let other = shared.mount(tree(4), &open, &options);
        gate.close();
        let paths = stuck.iter().flat_map(|mount| (0..4).map(|file| mount.file(&file.to_string())));
        let readers: Vec<_> = paths.map(|path| thread::spawn(move || fs::read(path))).collect();
        until("the reads arrive", || stuck.iter().all(|mount| mount.counts().of(floe_fuse::RequestKind::Read) >= 4));
        for _ in 0..20 {
            read_all(&other, 4);
            read_byte(&other, 1).expect("data");
        }
        assert!(readers.iter().all(|reader| !reader.is_finished()), "the source is stuck");
        // Nor does the end of one of them.
        let mut ending = stuck.remove(0);
        ending.unmounter().unmount(Detach::Lazily).expect("it is mounted");
        let mount = ending.take();
        drop(ending);
        read_all(&other, 4);
        gate.open();
        readers.into_iter().for_each(|reader| _ = within(move || reader.join().expect("no panic")).expect("data"));
        assert!(matches!(within(|| mount.wait()), Ended::Unmounted | Ended::Stuck));
    }
}

#[test]
fn a_thread_that_is_stuck_is_replaced() {
    if !can_mount() {
        return;
    }
    let (shared, gate, open) = (SharedThreads::start(2), Arc::<Gate>::default(), Arc::<Gate>::default());
    let options = MountOptions { deadline: None, ..MountOptions::default() };
    let [stuck, other] = [&gate, &open].map(|gate| shared.mount(tree(0), gate, &options));
    read_all(&other, 0);
    // This source does not tell that its bytes are not in memory, so a session thread waits for it without a permit.
    gate.close();
    let path = stuck.file("0");
    let reader = thread::spawn(move || fs::read(path));
    until("the read arrives", || stuck.counts().of(floe_fuse::RequestKind::Read) > 0);
    for _ in 0..20 {
        read_byte(&other, 1).expect("data");
        let path = other.path().to_owned();
        within(move || rustix::fs::statvfs(&path)).expect("statistics");
    }
    assert!(!reader.is_finished(), "the source is stuck");
    gate.open();
    assert!(within(move || reader.join().expect("no panic")).expect("data") == content(0, 0));
}

#[test]
fn a_flood_of_requests_starves_no_other_mount() {
    if !can_mount() {
        return;
    }
    let (shared, gate) = (SharedThreads::start(1), Arc::<Gate>::default());
    let [flooded, other] = [0, 1].map(|number| shared.mount(tree(number), &gate, &MountOptions::default()));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    rustix::fs::statvfs(flooded.path()).expect("statistics");
                }
            });
        }
        let path = other.path().to_owned();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            (0..100).for_each(|_| _ = rustix::fs::statvfs(&path).expect("statistics"));
            sender.send(())
        });
        let served = receiver.recv_timeout(PATIENCE);
        is_over.store(true, Relaxed);
        assert!(served.is_ok(), "only one mount is served");
    });
}

#[test]
fn one_mount_is_paused_and_handed_over_while_others_are_served() {
    if !can_mount() {
        return;
    }
    let (shared, next_shared) = (SharedThreads::start(2), SharedThreads::start(2));
    let gate = Arc::<Gate>::default();
    for clone_fd in [false, true] {
        let options = MountOptions { clone_fd, ..MountOptions::default() };
        let mut mount = shared.mount(tree(0), &gate, &options);
        let other = shared.mount(tree(1), &gate, &options);
        read_all(&mount, 0);
        let served = mount.take();
        let handover = served.handover().expect("it can be handed over");
        let paused = handover.pause(PATIENCE).expect("nothing is in progress");
        assert_eq!(handover.pause(Duration::ZERO).err(), Some(PauseError::Busy));
        let path = mount.path().to_owned();
        let waiting = thread::spawn(move || rustix::fs::statvfs(&path));
        read_all(&other, 1);
        assert!(!waiting.is_finished(), "it is paused");
        drop(paused);
        within(move || waiting.join().expect("no panic")).expect("statistics");
        // Now for good.
        let devices = handover.devices().into_iter().map(|device| device.try_clone_to_owned().expect("a descriptor"));
        let directory = mount.path().canonicalize().expect("it is there");
        let inherited = Inherited {
            devices: devices.collect(),
            auto_unmount: None,
            directory,
            place: None,
            terms: handover.terms(),
        };
        let reader = next_shared.reader(&Arc::new(tree(0)), &gate);
        let next = Mount::new(reader, inherited, next_shared.setup(&options)).expect("threads");
        handover.pause(PATIENCE).expect("nothing is in progress").finish();
        let next = next.serve().expect("the connection is alive");
        assert!(matches!(within(|| served.wait()), Ended::HandedOver));
        read_byte(&mount, 2).expect("data");
        read_all(&other, 1);
        next.unmounter().unmount(Detach::Lazily).expect("it is mounted");
        assert!(matches!(within(|| next.wait()), Ended::Unmounted));
    }
}

#[test]
fn an_aborted_connection_and_a_panic_hit_only_their_mount() {
    if !can_mount() {
        return;
    }
    let (shared, gate) = (SharedThreads::start(2), Arc::<Gate>::default());
    let panics = Arc::new(AtomicU64::new(0));
    let panicking = Arc::clone(&panics);
    let reads = move |_, _, _| {
        panicking.fetch_add(1, Relaxed);
        panic!("reads of this mount panic, as the test wants");
    };
    let hooks = MountHooks { reads: Some(Arc::new(reads)), ..MountHooks::default() };
    let broken = shared.mount(tree(0), &gate, MountSetup { hooks, ..MountSetup::default() });
    let mut aborted = shared.mount(tree(1), &gate, &MountOptions::default());
    let other = shared.mount(tree(2), &gate, &MountOptions::default());
    for _ in 0..10 {
        let error = read_byte(&broken, 1).expect_err("it panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert!(panics.load(Relaxed) >= 10);
    rustix::fs::statvfs(broken.path()).expect("other requests are served");
    abort(&aborted.unmounter());
    let mount = aborted.take();
    let ended = within(|| mount.wait());
    assert!(matches!(ended, Ended::Failed(_)), "{ended:?}");
    read_all(&other, 2);
}
