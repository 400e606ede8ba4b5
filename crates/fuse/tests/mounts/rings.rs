//! Mounts over io_uring: whether they may use it, and what happens when their source is in trouble. The tests set the kernel's
//! parameter for as long as they run.

use std::{
    fs::{self, File},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use floe_fuse::{Ended, MountHandles, MountOptions, MountSetup, Rings, Transport};
use floe_fuse_wire::{Channel, Errno, InitFlags, Receipt, RequestBuffer, Ring, Terms};
use floe_sync::{Mutex, MutexGuard};
use floe_testkit::skip::skipped;
use rustix::{
    fs::{FlockOperation, flock},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use crate::support::{Gate, Numbering, PATIENCE, TestMount, TreeFileSystem, can_mount, within};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// More than the kernel gets slots for on two CPUs.
const READERS: usize = 80;

/// The kernel's parameter, which one test at a time sets. Dropping this restores it.
struct Parameter {
    file: File,
    before: Vec<u8>,
    _alone: MutexGuard<'static, ()>,
}

impl Parameter {
    fn set_to(value: &str) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if !can_mount() {
            return None;
        }
        let alone = ALONE.lock();
        let opened = fs::read(PARAMETER).and_then(|before| {
            let file = File::options().write(true).open(PARAMETER)?;
            let parameter = Self { file, before, _alone: alone };
            parameter.file.write_all_at(value.as_bytes(), 0).map(|()| parameter)
        });
        opened.inspect_err(|error| skipped(&format!("FUSE over io_uring cannot be enabled: {error}"))).ok()
    }

    fn set(&self, value: &str) {
        self.file.write_all_at(value.as_bytes(), 0).expect("it was set before");
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = self.file.write_all_at(&self.before, 0);
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    fs::File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).map(|()| bytes)
}

/// Reads a file whose source is well. On a busy machine, the first attempts may take longer than the deadline of the mount, and
/// after a fault they may still see its end.
fn read_again(path: &Path) -> Vec<u8> {
    let path = path.to_owned();
    within(move || {
        loop {
            match read(&path) {
                Ok(bytes) => return bytes,
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    })
}

fn with_rings(rings: Rings) -> MountSetup {
    MountSetup { handles: MountHandles { rings: Some(rings), ..MountHandles::default() }, ..MountSetup::default() }
}

#[test]
fn more_stuck_reads_than_slots_end_with_eio_and_pass_when_the_source_is_back() {
    let Some(_parameter) = Parameter::set_to("Y") else { return };
    let gate = Arc::new(Gate::default());
    gate.tells.store(true, Relaxed);
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for index in 0..READERS {
        tree.file(&index.to_string(), &vec![index as u8 + 1; 8192]);
    }
    let rings = Rings::new().expect("the kernel has io_uring");
    let options = MountOptions { deadline: Some(Duration::from_millis(400)), ..MountOptions::default() };
    let setup = MountSetup { options, ..with_rings(rings) };
    let mut mount = TestMount::gated(tree, &gate, setup);
    assert_eq!(read_again(&mount.file("0")), [1; 4096]);
    gate.close();
    let readers: Vec<_> = (1..READERS)
        .map(|index| {
            let path = mount.file(&index.to_string());
            thread::spawn(move || read(&path))
        })
        .collect();
    for reader in readers {
        let result = within(move || reader.join().expect("no panic"));
        assert_eq!(result.err().and_then(|error| error.raw_os_error()), Some(libc::EIO));
    }
    gate.open();
    for index in 0..READERS {
        assert!(read_again(&mount.file(&index.to_string())) == vec![index as u8 + 1; 4096], "{index}");
    }
    let mount = mount.take();
    assert!(matches!(mount.transport(), Transport::Rings(count) if *count > 0), "{:?}", mount.transport());
    assert!(mount.handover().is_none());
    mount.unmounter().unmount(floe_keeper::Detach::Lazily).expect("it is mounted");
    assert!(matches!(within(|| mount.wait()), Ended::Unmounted));
}

#[test]
fn the_permission_of_another_connection_is_not_used() {
    let Some(parameter) = Parameter::set_to("N") else { return };
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    tree.file("file", &[7; 8192]);
    // Another server sets up a connection.
    let other = File::open(PARAMETER).expect("it is there");
    flock(&other, FlockOperation::LockExclusive).expect("it is free");
    parameter.set("Y");
    let rings = Rings::new().expect("the kernel has io_uring");
    let mut mount = TestMount::new(tree, with_rings(rings));
    parameter.set("N");
    drop(other);
    let path = mount.file("file");
    assert_eq!(within(move || read(&path)).expect("data"), [7; 4096]);
    let transport = mount.take().transport().clone();
    assert!(matches!(transport, Transport::DeviceWithout(_)), "{transport:?}");
}

/// A FUSE mount without a server. Dropping it detaches it.
struct BareMount(tempfile::TempDir);

impl BareMount {
    fn new(channel: &Channel) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", channel.as_fd().as_raw_fd());
        let data = std::ffi::CString::new(data).expect("no zeros");
        mount("rings", directory.path(), "fuse.floe-test", MountFlags::RDONLY, data.as_c_str()).expect("a mount");
        Self(directory)
    }
}

impl Drop for BareMount {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Agrees on io_uring, and on requests and replies of one page.
fn negotiate(channel: &Channel, at_the_reply: impl Fn()) {
    let terms = |_: &floe_fuse_wire::Offer| {
        at_the_reply();
        Terms {
            flags: InitFlags::OVER_IO_URING | InitFlags::MAX_PAGES,
            readahead_bytes_max: 0,
            background_max: 1,
            congestion_threshold: 1,
            write_bytes_max: 4096,
            pages_max: 1,
            time_granularity_ns: 1,
            request_timeout_s: 0,
        }
    };
    channel.negotiate(terms).expect("the kernel takes it");
}

/// One ring with slots for every CPU that the machine can have. Its thread is the caller.
fn ring_of_all_queues(channel: &Channel) -> Ring {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").expect("sysfs");
    let last: u16 = possible.trim().rsplit(['-', ',']).next().and_then(|last| last.parse().ok()).expect("a number");
    let mut ring = Ring::new((0..=last).collect()).expect("the kernel has io_uring");
    ring.start(channel, 1 << 20).expect("the parameter is set");
    ring.fill().expect("the parameter is set");
    ring
}

/// A server that is killed can have a thread that waits, uninterruptibly, for a page of a request in a ring. That thread keeps
/// the ring open, so the end of the ring's own thread and of the connection must suffice to end the request.
#[test]
fn no_request_outlives_its_connection_in_the_ring_of_an_ended_thread() {
    let Some(_parameter) = Parameter::set_to("Y") else { return };
    for round in 0..40 {
        let channel = Channel::new(floe_fuse_wire::open().expect("FUSE"));
        let mounted = BareMount::new(&channel);
        negotiate(&channel, || {});
        let path = mounted.0.path().to_owned();
        let clients: Vec<_> = (0..12)
            .map(|number| {
                let file = path.join(number.to_string());
                thread::spawn(move || {
                    while fs::symlink_metadata(&file).is_err_and(|error| error.raw_os_error() == Some(libc::EIO)) {}
                })
            })
            .collect();
        let server = thread::spawn(move || {
            let mut ring = ring_of_all_queues(&channel);
            for _ in 0..20 + round {
                let mut buffer = RequestBuffer::new(0);
                match ring.receive(&mut buffer) {
                    Ok(Receipt::Request(received)) => received.reply.refuse(Errno::IO),
                    other => panic!("no request: {:?}", other.map(drop)),
                }
            }
            ring
        });
        let ring = within(move || server.join()).expect("no panic");
        // Ends the connection. The mount is in use.
        let _ = unmount(&path, UnmountFlags::FORCE);
        let deadline = Instant::now() + PATIENCE / 2;
        while Instant::now() < deadline && !clients.iter().all(thread::JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
        }
        let left = clients.iter().filter(|client| !client.is_finished()).count();
        // Frees them in any case.
        drop(ring);
        within(move || clients.into_iter().for_each(|client| client.join().expect("no panic")));
        assert_eq!(left, 0, "round {round}: clients that the end of the connection did not free");
    }
}

/// The rule for which a mount keeps its permission until its rings have begun.
#[test]
fn replies_over_rings_are_refused_if_the_parameter_was_off_during_the_handshake() {
    let Some(parameter) = Parameter::set_to("Y") else { return };
    let channel = Channel::new(floe_fuse_wire::open().expect("FUSE"));
    let mounted = BareMount::new(&channel);
    negotiate(&channel, || parameter.set("N"));
    parameter.set("Y");
    let mut ring = ring_of_all_queues(&channel);
    parameter.set("N");
    let mut reader =
        Command::new("stat").arg(mounted.0.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat");
    let mut buffer = RequestBuffer::new(0);
    match ring.receive(&mut buffer) {
        Ok(Receipt::Request(received)) => received.reply.refuse(Errno::IO),
        other => panic!("no request: {:?}", other.map(drop)),
    }
    let refused = ring.receive(&mut buffer).map(drop).expect_err("the reply is refused");
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    // Only the end of the connection frees the reader.
    assert!(reader.try_wait().expect("our child").is_none());
    drop((ring, channel));
    assert!(!within(move || reader.wait()).expect("our child").success());
}
