//! Mounts over io_uring whose source is in trouble. The test enables io_uring in the kernel for as long as it runs.

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::Duration,
};

use floe_fuse::{Ended, MountOptions, Rings, Transport};
use floe_testkit::skip::skipped;
use support::{Gate, Numbering, TestMount, TreeFileSystem, can_mount};

const PATIENCE: Duration = Duration::from_secs(60);
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// More than the kernel gets slots for on two CPUs.
const READERS: usize = 80;

/// Restores the kernel's parameter.
struct Enabled {
    before: String,
}

impl Enabled {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let enabled = fs::read_to_string(PARAMETER).and_then(|before| {
            fs::write(PARAMETER, "Y")?;
            Ok(Self { before })
        });
        enabled.inspect_err(|error| skipped(&format!("FUSE over io_uring cannot be enabled: {error}"))).ok()
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

/// Runs `work` on its own thread, so that a stuck client fails the test instead of hanging it.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(PATIENCE).expect("it ends in time")
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    fs::File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).map(|()| bytes)
}

#[test]
fn more_stuck_reads_than_slots_end_with_eio_and_pass_when_the_source_is_back() {
    let Some(_enabled) = Enabled::new() else { return };
    let gate = Arc::new(Gate::default());
    gate.tells.store(true, Relaxed);
    let mut tree = TreeFileSystem::new(Numbering::Nids);
    for index in 0..READERS {
        tree.file(&index.to_string(), &vec![index as u8 + 1; 8192]);
    }
    let rings = Rings::new().expect("the kernel has io_uring");
    let options =
        MountOptions { deadline: Some(Duration::from_millis(400)), rings: Some(rings), ..MountOptions::default() };
    let mut mount = TestMount::gated(tree, &gate, &options);
    let path = mount.file("0");
    assert_eq!(within(move || read(&path)).expect("data"), [1; 4096]);
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
        let path = mount.file(&index.to_string());
        let bytes = within(move || {
            // The first attempts may still see the end of the trouble.
            let mut attempts = (0..500).map(|_| read(&path).inspect_err(|_| thread::sleep(Duration::from_millis(100))));
            attempts.find_map(Result::ok)
        });
        assert!(bytes.expect("the source is back") == vec![index as u8 + 1; 4096], "{index}");
    }
    let mount = mount.take();
    assert!(matches!(mount.transport(), Transport::Rings(count) if *count > 0), "{:?}", mount.transport());
    assert!(mount.handover().is_none());
    mount.unmounter().unmount(floe_fuse::Detach::Lazily).expect("it is mounted");
    assert!(matches!(within(|| mount.wait()), Ended::Unmounted));
}
