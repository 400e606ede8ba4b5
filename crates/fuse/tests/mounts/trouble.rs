//! Failing and stuck sources, unmounts at bad moments, and invalid mountpoints.

use std::{
    fs, io,
    num::NonZero,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use floe_fuse::{Ended, Mount, MountError, MountHooks, MountOptions, MountSetup, Mountpoint};
use floe_image::Nid;
use floe_keeper::{Detach, KernelFlags, KernelOptions, MountTable, UnmountReason, unmount};

use crate::support::{Gate, Numbering, TestMount, TreeFileSystem, abort, can_mount, reader};

const FILE_BYTES: usize = 1 << 20;

/// How long anything may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A tree of `count` files of 1 MiB, named 0, 1, 2 …
fn tree(count: usize) -> TreeFileSystem {
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for index in 0..count {
        tree.file(&index.to_string(), &vec![index as u8 + 1; FILE_BYTES]);
    }
    tree
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Hooks that count faults.
fn counting(count: Arc<AtomicU64>) -> MountHooks {
    let faults = move |_: &_| {
        count.fetch_add(1, Relaxed);
    };
    MountHooks { faults: Some(Arc::new(faults)), ..MountHooks::default() }
}

fn with_deadline(milliseconds: u64) -> MountOptions {
    MountOptions { deadline: Some(Duration::from_millis(milliseconds)), ..MountOptions::default() }
}

/// Runs `work` on its own thread, so that a stuck client fails the test instead of hanging it.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(limit).expect("it ends in time")
}

#[test]
fn a_broken_source_gives_eio_and_is_tried_again() {
    if !can_mount() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let faults = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&faults);
    let setup = MountSetup { hooks: counting(count), ..MountSetup::default() };
    let mount = TestMount::gated(tree(2), &gate, setup);
    gate.fail();
    assert_eq!(errno(fs::read(mount.file("0"))), Some(libc::EIO));
    assert!(faults.load(Relaxed) > 0, "the fault is reported");
    gate.open();
    assert!(fs::read(mount.file("0")).expect("data") == vec![1; FILE_BYTES]);
    assert!(fs::read(mount.file("1")).expect("data") == vec![2; FILE_BYTES]);
}

#[test]
fn failed_readahead_behind_a_front_is_no_fault() {
    if !can_mount() {
        return;
    }
    for (direct_io, expected) in [(None, 2), (Some(Nid(u64::MAX)), 1)] {
        let gate = Arc::new(Gate::default());
        let faults = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&faults);
        let options = MountOptions { direct_io, ..MountOptions::default() };
        let setup = MountSetup { hooks: counting(count), ..MountSetup::from(&options) };
        let mount = TestMount::gated(tree(1), &gate, setup);
        gate.fail();
        let file = fs::File::open(mount.file("0")).expect("a file");
        // The kernel reads ahead, and then the page alone.
        assert_eq!(errno(file.read_at(&mut [0; 1], 0)), Some(libc::EIO));
        assert_eq!(faults.load(Relaxed), expected, "{direct_io:?}");
    }
}

#[test]
fn stuck_reads_end_with_eio_and_pass_when_the_source_is_back() {
    if !can_mount() {
        return;
    }
    // More readers than session threads. With a source that cannot tell what is in memory, some requests are not even
    // taken.
    let count = 2 * MountOptions::default().threads.get() + 3;
    for tells in [false, true] {
        let gate = Arc::new(Gate::default());
        gate.tells.store(tells, Relaxed);
        let deadline = 400;
        let mount = TestMount::gated(tree(count), &gate, &with_deadline(deadline));
        let start = Instant::now();
        gate.close();
        for reader in readers_of(&mount, count) {
            let result = within(PATIENCE, move || reader.join().expect("no panic"));
            assert_eq!(errno(result), Some(libc::EIO), "tells: {tells}");
        }
        assert!(start.elapsed() >= Duration::from_millis(deadline), "the deadline was waited for");
        gate.open();
        for index in 0..count {
            let path = mount.file(&index.to_string());
            let data = within(PATIENCE, move || read_again(&path));
            assert!(data == vec![index as u8 + 1; FILE_BYTES], "{index}, tells: {tells}");
        }
    }
}

#[test]
fn stuck_reads_leave_threads_for_other_requests() {
    if !can_mount() {
        return;
    }
    let count = 2 * MountOptions::default().threads.get() + 3;
    let gate = Arc::new(Gate::default());
    gate.tells.store(true, Relaxed);
    let options = MountOptions { deadline: None, ..MountOptions::default() };
    let mount = TestMount::gated(tree(count), &gate, &options);
    gate.close();
    let readers = readers_of(&mount, count);
    for index in 0..count {
        let path = mount.file(&index.to_string());
        within(PATIENCE, move || fs::metadata(path)).expect("attributes");
        let path = mount.path().to_owned();
        within(PATIENCE, move || rustix::fs::statvfs(&path)).expect("statistics");
    }
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    gate.open();
    for reader in readers {
        within(PATIENCE, move || reader.join().expect("no panic")).expect("data");
    }
}

/// Threads that each read the beginning of their own file.
fn readers_of(mount: &TestMount, count: usize) -> Vec<JoinHandle<io::Result<()>>> {
    let reader = |index: usize| {
        let path = mount.file(&index.to_string());
        thread::spawn(move || {
            let mut bytes = vec![0; 4096];
            fs::File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0))
        })
    };
    (0..count).map(reader).collect()
}

/// Reads a file. The first attempts may still see the end of the trouble.
fn read_again(path: &Path) -> Vec<u8> {
    let started = Instant::now();
    loop {
        match fs::read(path) {
            Ok(data) => return data,
            Err(error) if started.elapsed() > PATIENCE / 2 => panic!("{}: {error}", path.display()),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

#[test]
fn stuck_lookups_end_with_eio() {
    if !can_mount() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let mut tree = tree(1);
    tree.gate = Some(Arc::clone(&gate));
    let mount = TestMount::new(tree, &with_deadline(400));
    gate.close();
    let clients: Vec<_> = (0..8)
        .map(|index| {
            let path = mount.file(&format!("missing-{index}"));
            thread::spawn(move || fs::metadata(path))
        })
        .collect();
    for client in clients {
        let result = within(PATIENCE, move || client.join().expect("no panic"));
        assert_eq!(errno(result), Some(libc::EIO));
    }
    gate.open();
    assert!(read_again(&mount.file("0")) == vec![1; FILE_BYTES]);
}

#[test]
fn without_a_deadline_a_read_waits_as_long_as_the_source() {
    if !can_mount() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let options = MountOptions { deadline: None, ..MountOptions::default() };
    let mount = TestMount::gated(tree(1), &gate, &options);
    gate.close();
    let path = mount.file("0");
    let client = thread::spawn(move || fs::read(path));
    thread::sleep(Duration::from_millis(700));
    assert!(!client.is_finished());
    gate.open();
    let data = within(PATIENCE, move || client.join().expect("no panic"));
    assert!(data.expect("data") == vec![1; FILE_BYTES]);
}

#[test]
fn an_unmount_ends_reads_in_progress() {
    if !can_mount() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let mut mount = TestMount::gated(tree(4), &gate, &with_deadline(60_000));
    let readers: Vec<_> = (0..4)
        .map(|index| {
            let path = mount.file(&index.to_string());
            thread::spawn(move || {
                let mut bytes = vec![0; 4096];
                // Opens the file each time, so that no client keeps the mount in use for long.
                let mut read = || fs::File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, 0));
                loop {
                    if let Err(error) = read() {
                        return error.raw_os_error();
                    }
                    // On a busy machine, readers without pauses would keep the mount in use forever.
                    thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let unmounter = mount.unmounter();
    while let Err(error) = unmounter.unmount(Detach::Never) {
        assert!(matches!(error.reason, UnmountReason::Busy), "{error}");
    }
    let mount = mount.take();
    assert!(matches!(within(PATIENCE, move || mount.wait()), Ended::Unmounted));
    for reader in readers {
        let last = within(PATIENCE, move || reader.join().expect("no panic"));
        // The directory is empty again. A client inside the mount may still see its end.
        let ends = [libc::ENOENT, libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
        assert!(last.is_some_and(|last| ends.contains(&last)), "{last:?}");
    }
}

#[test]
fn a_covered_mount_is_mounted_and_its_cover_is_left_alone() {
    if !can_mount() {
        return;
    }
    let mut mount = TestMount::new(tree(1), &MountOptions::default());
    let unmounter = mount.unmounter();
    rustix::mount::mount("cover", mount.path(), "tmpfs", rustix::mount::MountFlags::empty(), None).expect("a cover");
    let is_mounted = unmounter.is_mounted();
    let result = unmounter.unmount(Detach::Lazily);
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::empty()).expect("the cover is still there");
    assert!(is_mounted);
    assert!(result.as_ref().is_err_and(|error| matches!(error.reason, UnmountReason::Covered)), "{result:?}");
    assert!(fs::exists(mount.file("0")).expect("the mount is served"));
    unmounter.unmount(Detach::Never).expect("nothing covers it any more");
    assert!(!unmounter.is_mounted());
    assert!(matches!(mount.take().wait(), Ended::Unmounted));
}

#[test]
fn a_lazy_unmount_lets_open_files_be_read_and_then_ends() {
    if !can_mount() {
        return;
    }
    let mut mount = TestMount::new(tree(1), &MountOptions::default());
    let file = fs::File::open(mount.file("0")).expect("a file");
    let unmounter = mount.unmounter();
    assert!(unmounter.unmount(Detach::Never).is_err_and(|error| matches!(error.reason, UnmountReason::Busy)));
    unmounter.unmount(Detach::Lazily).expect("it is detached");
    assert!(!unmounter.is_mounted());
    assert!(unmounter.unmount(Detach::Never).is_err_and(|error| matches!(error.reason, UnmountReason::NotMounted)));
    let mut bytes = vec![0; FILE_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("the mount is served as long as it is in use");
    assert!(bytes == vec![1; FILE_BYTES]);
    let mount = mount.take();
    let waiting = thread::spawn(move || mount.wait());
    thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    drop(file);
    let ended = within(PATIENCE, move || waiting.join().expect("no panic"));
    assert!(matches!(ended, Ended::Unmounted));
}

#[test]
fn an_end_does_not_wait_for_a_stuck_source() {
    if !can_mount() {
        return;
    }
    // With a source that tells what is in memory, only session threads with a permit get stuck; otherwise all of them
    // do.
    for (tells, thread_count, is_stuck) in [(false, 4, true), (true, 4, true), (false, 1, true), (true, 1, false)] {
        let gate = Arc::new(Gate::default());
        gate.tells.store(tells, Relaxed);
        let threads = NonZero::new(thread_count).expect("not zero");
        let mut mount = TestMount::gated(tree(8), &gate, &MountOptions { threads, ..with_deadline(300) });
        gate.close();
        for index in 0..8 {
            let path = mount.file(&index.to_string());
            let result = within(PATIENCE, move || fs::read(path));
            assert_eq!(errno(result), Some(libc::EIO));
        }
        let unmounter = mount.unmounter();
        within(PATIENCE, move || unmounter.unmount(Detach::Lazily).expect("an unmount"));
        let mount = mount.take();
        let ended = within(PATIENCE, move || mount.wait());
        let is_as_expected = if is_stuck { matches!(ended, Ended::Stuck) } else { matches!(ended, Ended::Unmounted) };
        assert!(is_as_expected, "tells: {tells}, threads: {thread_count}: {ended:?}");
        gate.open();
    }
}

#[test]
fn the_root_directory_is_refused_as_mountpoint() {
    let found = Mountpoint::find(Path::new("/"));
    assert!(matches!(&found, Err(MountError::Directory { .. })), "{found:?}");
}

#[test]
fn an_aborted_connection_leaves_no_dead_mount_though_the_source_is_stuck() {
    if !can_mount() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let mut mount = TestMount::gated(tree(8), &gate, &with_deadline(300));
    gate.close();
    for index in 0..8 {
        let path = mount.file(&index.to_string());
        let result = within(PATIENCE, move || fs::read(path));
        assert_eq!(errno(result), Some(libc::EIO));
    }
    let (unmounter, path) = (mount.unmounter(), mount.path().to_owned());
    abort(&unmounter);
    let mount = mount.take();
    let ended = within(PATIENCE, move || mount.wait());
    assert!(matches!(ended, Ended::Stuck), "{ended:?}");
    let table = MountTable::read().expect("a table");
    assert!(table.on(&path).is_none(), "a dead mount is left");
    gate.open();
}

/// Unmounts a directory that is no longer used. A process that another test is starting may still hold copies of this
/// process's descriptors.
fn unmount_unused(path: &Path) {
    let start = Instant::now();
    while let Err(error) = unmount(path, Detach::Never) {
        assert!(matches!(error.reason, UnmountReason::Busy) && start.elapsed() < PATIENCE, "{error}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_mount_is_served_through_a_given_descriptor() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the device");
    let path = format!("/dev/fd/{}", device.as_raw_fd());
    let mountpoint = Mountpoint::find(Path::new(&path)).expect("an open descriptor");
    let data = format!("fd={},rootmode=40755,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
    let data = std::ffi::CString::new(data).expect("text");
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount("other", directory.path(), "fuse.other", flags, data.as_c_str()).expect("a mount");
    // The runtime does not keep its descriptor longer than necessary.
    drop(device);
    let tree = Arc::new(tree(1));
    let serving = thread::spawn(move || {
        Mount::new(reader(&tree, &Arc::new(Gate::default())), mountpoint, &MountOptions::default())
    });
    let mount = within(PATIENCE, move || serving.join().expect("no panic")).expect("a mount");
    let result = fs::read(directory.path().join("0"));
    let refused = mount.unmounter().unmount(Detach::Never);
    unmount_unused(directory.path());
    assert!(result.expect("data") == vec![1; FILE_BYTES]);
    assert!(refused.is_err_and(|error| matches!(error.reason, UnmountReason::NotMounted)), "it is not ours to unmount");
    assert!(matches!(within(PATIENCE, move || mount.wait()), Ended::Unmounted));
}

#[test]
fn invalid_mountpoints_are_reported() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("a file");
    let kernel = KernelOptions { source: "/a b,c".to_owned(), ..KernelOptions::default() };
    let mount = TestMount::new(tree(1), &MountOptions { kernel, ..MountOptions::default() });
    let null = fs::File::open("/dev/null").expect("a device");
    for (path, expected) in [
        (directory.path().join("missing"), "No such file or directory"),
        (file.clone(), "is not a directory"),
        (mount.path().to_owned(), "/a b,c is already mounted on"),
        (Path::new("/dev/fd/99999").to_owned(), "Bad file descriptor"),
        (Path::new("/dev/fd/x").to_owned(), "Bad file descriptor"),
        (Path::new(&format!("/dev/fd/{}", null.as_raw_fd())).to_owned(), "not an open descriptor of /dev/fuse"),
    ] {
        let message = Mountpoint::find(&path).expect_err("no mountpoint").to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{}: {message}", path.display());
    }
    for (path, expected) in [
        (directory.path(), "is not a mountpoint"),
        (&file, "is not a mountpoint"),
        (&directory.path().join("missing"), "No such file"),
        (Path::new("/proc"), "is a mount of proc, not one of Floe"),
    ] {
        let message = unmount(path, Detach::Never).expect_err("no unmount").to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{}: {message}", path.display());
    }
}

#[test]
fn dead_mounts_are_reported_and_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the device");
    let data = format!("fd={},rootmode=40755,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).expect("text");
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount("dead", directory.path(), "fuse.dead", flags, data.as_c_str()).expect("a mount");
    drop(device);
    // A process that another test is starting may hold a copy of the descriptor for a moment, in which the mount is not dead.
    let path = directory.path().to_owned();
    let _ = within(PATIENCE, move || fs::metadata(path));
    let found = Mountpoint::find(directory.path());
    let unmounted = unmount(directory.path(), Detach::Never);
    assert!(matches!(&found, Err(MountError::Dead(path)) if path == directory.path()), "{found:?}");
    unmounted.expect("an unmount");
    Mountpoint::find(directory.path()).expect("a directory again");
}

#[test]
fn mounts_appear_in_the_table() {
    if !can_mount() {
        return;
    }
    let kernel = KernelOptions {
        source: "/images/a b,c\\d".to_owned(),
        flags: KernelFlags { nosuid: true, nodev: true, noexec: true, nosymfollow: false },
        readahead_bytes: Some(1 << 20),
        ..KernelOptions::default()
    };
    let options = MountOptions { kernel, ..MountOptions::default() };
    let mut mount = TestMount::new(tree(1), &options);
    let table = MountTable::read().expect("a table");
    let entry = table.on(mount.path()).expect("the mount").clone();
    assert_eq!((entry.file_system.as_str(), entry.source.to_str()), ("fuse.floe", Some("/images/a b,c\\d")));
    let text = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let line = text.lines().find(|line| line.contains(mount.path().to_str().expect("text"))).expect("the mount");
    for word in ["ro,nosuid,nodev,noexec", "default_permissions", "allow_other"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    let (major, minor) = entry.device;
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).expect("sysfs");
    assert_eq!(read_ahead.trim(), "1024");
    assert!(mount.take().readahead_refusal().is_none());
}

#[test]
fn readers_get_errors_after_all_session_threads_failed() {
    if !can_mount() {
        return;
    }
    let reads: Arc<dyn Fn(Nid, u64, u32) + Send + Sync> = Arc::new(|_, _, _| panic!("this panic is part of the test"));
    let threads = NonZero::new(1).expect("not 0");
    let options = MountOptions { threads, ..MountOptions::default() };
    let hooks = MountHooks { reads: Some(reads), ..MountHooks::default() };
    let mount = TestMount::new(tree(3), MountSetup { hooks, ..MountSetup::from(&options) });
    for name in ["0", "1", "2"] {
        let path = mount.path().join(name);
        let result = within(PATIENCE, move || fs::read(path));
        assert_eq!(errno(result), Some(libc::EIO), "{name}");
    }
}
