//! A file system in memory, a source that can be blocked, and mounts that clean up after themselves.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

mod gate;
mod tree;

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Engine, EngineOptions, Reader, Volume, VolumeOptions};
use floe_fuse::{
    Detach, Mount, MountHandles, MountOptions, MountSetup, Mountpoint, RequestCounts, Sessions, Unmounter,
};
use floe_testkit::skip::{Need, ready};
pub(crate) use gate::{Gate, GatedSource};
pub(crate) use tree::{Fault, Numbering, TreeFileSystem};

/// Whether this machine can mount. If not, prints a message to stderr.
pub(crate) fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// How long something may take that does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `work` on its own thread, so that a stuck client fails the test instead of hanging it.
pub(crate) fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(PATIENCE).expect("it ends in time")
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A mount on its own directory. Dropping it always unmounts.
pub(crate) struct TestMount {
    mount: Option<Mount>,
    unmounter: Unmounter,
    directory: Option<tempfile::TempDir>,
    pub(crate) tree: Arc<TreeFileSystem>,
    /// The reader of the mount.
    pub(crate) reader: Reader,
}

impl TestMount {
    pub(crate) fn new(tree: TreeFileSystem, setup: impl Into<MountSetup>) -> Self {
        Self::gated(tree, &Arc::new(Gate::default()), setup)
    }

    /// Mounts a tree whose data come through a gate.
    pub(crate) fn gated(tree: TreeFileSystem, gate: &Arc<Gate>, setup: impl Into<MountSetup>) -> Self {
        let tree = Arc::new(tree);
        let reader = reader(&tree, gate);
        Self::of(tree, reader, setup)
    }

    /// Mounts a tree in the volume of a reader.
    pub(crate) fn of(tree: Arc<TreeFileSystem>, reader: Reader, setup: impl Into<MountSetup>) -> Self {
        let directory = tempfile::Builder::new().prefix("floe-fuse-").tempdir().expect("a directory");
        let mountpoint = Mountpoint::find(directory.path()).expect("a directory to mount on");
        let mount = Mount::new(reader.clone(), mountpoint, setup).expect("a mount");
        Self { unmounter: mount.unmounter(), mount: Some(mount), directory: Some(directory), tree, reader }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.as_ref().expect("it is there until the end").path()
    }

    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        self.mount.as_ref().expect("it was not taken").request_counts()
    }

    pub(crate) fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    pub(crate) fn take(&mut self) -> Mount {
        self.mount.take().expect("it is taken once")
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        drop(self.mount.take());
        let _ = self.unmounter.unmount(Detach::Lazily);
        if self.unmounter.is_mounted() {
            // Removing the directory would delete through the mount.
            let _ = self.directory.take().map(tempfile::TempDir::keep);
        }
    }
}

/// An engine for many mounts, and the session threads of all.
pub(crate) struct SharedThreads {
    pub(crate) engine: Arc<Engine>,
    pub(crate) sessions: Sessions,
}

impl SharedThreads {
    pub(crate) fn start(thread_count: usize) -> Self {
        let engine = Engine::new(&EngineOptions::default()).expect("an engine");
        let thread_count = NonZero::new(thread_count).expect("not zero");
        let sessions = Sessions::start(&engine, thread_count, MountOptions::default().busy_polling);
        Self { engine, sessions: sessions.expect("threads") }
    }

    /// A reader of a tree in a volume of its own.
    pub(crate) fn reader(&self, tree: &Arc<TreeFileSystem>, gate: &Arc<Gate>) -> Reader {
        let source = Arc::new(GatedSource::new(tree.image(), Arc::clone(gate)));
        Reader::new(self.engine.attach(vec![source], &VolumeOptions::default()), Arc::clone(tree) as _)
    }

    /// A setup with the shared threads.
    pub(crate) fn setup(&self, setup: impl Into<MountSetup>) -> MountSetup {
        let setup = setup.into();
        MountSetup { handles: MountHandles { sessions: Some(self.sessions.clone()), ..setup.handles }, ..setup }
    }

    /// Mounts a tree whose data come through a gate.
    pub(crate) fn mount(&self, tree: TreeFileSystem, gate: &Arc<Gate>, setup: impl Into<MountSetup>) -> TestMount {
        let tree = Arc::new(tree);
        let reader = self.reader(&tree, gate);
        TestMount::of(tree, reader, self.setup(setup))
    }
}

pub(crate) fn reader(tree: &Arc<TreeFileSystem>, gate: &Arc<Gate>) -> Reader {
    let source = Arc::new(GatedSource::new(tree.image(), Arc::clone(gate)));
    let volume = Volume::alone(vec![source], &EngineOptions::default(), &VolumeOptions::default());
    Reader::new(volume.expect("an engine"), Arc::clone(tree) as _)
}

/// Aborts the connection of a mount, as root can.
pub(crate) fn abort(unmounter: &Unmounter) {
    let (_, minor) = unmounter.device().expect("it is mounted");
    let control = tempfile::tempdir().expect("a directory");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("fusectl", control.path(), "fusectl", flags, None).expect("FUSE's control files");
    let aborted = std::fs::write(control.path().join(minor.to_string()).join("abort"), "1");
    rustix::mount::unmount(control.path(), rustix::mount::UnmountFlags::DETACH).expect("an unmount");
    aborted.expect("the kernel accepts the abort");
}
