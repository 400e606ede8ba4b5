//! Options, hooks and handles of a mount.

use std::{
    fmt,
    num::NonZero,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use floe_image::{ByteRange, Error, Nid};
use floe_keeper::{Keeper, KernelOptions};

use crate::{Sessions, connection::rings::Rings};

/// Options, hooks and handles of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountSetup {
    /// Values that users choose.
    pub options: MountOptions,
    /// Functions that the mount calls.
    pub hooks: MountHooks,
    /// Resources that the mount uses.
    pub handles: MountHandles,
}

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the kernel is told.
    pub kernel: KernelOptions,
    /// The owner of all inodes, instead of the image's owners.
    pub uid: Option<u32>,
    /// The group of all inodes, instead of the image's groups.
    pub gid: Option<u32>,
    /// Whether the attributes of overlayfs in the image have the names that overlayfs reads in a user namespace: `user.overlay.…`
    /// instead of `trusted.overlay.…`.
    pub user_overlay: bool,
    /// The maximum number of threads that take requests, unless the mount shares its session threads. Threads that are not
    /// needed rest.
    pub threads: NonZero<usize>,
    /// Whether each of them has its own descriptor of the device.
    pub clone_fd: bool,
    /// The maximum number of readahead and other background requests that the kernel may have in progress.
    pub background_max: NonZero<u16>,
    /// The entries that replies for directories contain.
    pub readdir: Readdir,
    /// How long a request may take before it is answered with `EIO`; `None` for no limit.
    pub deadline: Option<Duration>,
    /// How long a thread polls for the next request after a reply before it sleeps, while one program sends one request after
    /// the other; `None` for no busy polling. Shared session threads have a time of their own.
    pub busy_polling: Option<Duration>,
    /// Behind a front: the file that the kernel reads past its page cache. The other file is the virtual image, whose metadata
    /// and data EROFS reads through the page cache, with readahead.
    pub direct_io: Option<Nid>,
    /// Whether the kernel's EROFS in front reads each file in requests of its own, if it can, so that accesses are exact.
    pub front_direct_io: bool,
    /// Whether the image is closed as soon as the kernel has ended the connection, so that the file system of the image can be
    /// unmounted at once. Reads of the image fail from then on.
    pub closes_image: bool,
}

/// The functions that a mount calls.
#[derive(Clone, Default)]
pub struct MountHooks {
    /// Called for errors.
    pub faults: Option<FaultSink>,
    /// Called for reads.
    pub reads: Option<ReadSink>,
    /// Called for accesses. With the kernel's EROFS in front, only for reads.
    pub accesses: Option<AccessSink>,
    /// Called when [`Mount::wait`](crate::Mount::wait) returns at once from now on.
    pub ended: Option<EndSink>,
}

/// The resources that a mount uses.
#[derive(Clone, Debug, Default)]
pub struct MountHandles {
    /// Mounts and unmounts for this process. Without it, the process does so itself, and has no front.
    pub keeper: Option<Arc<Keeper>>,
    /// The rings over which the kernel sends requests, if it offers that; `None` for `/dev/fuse`. Such a mount cannot be handed
    /// over.
    pub rings: Option<Rings>,
    /// The session threads that take the requests, together with those of other mounts of the same engine; `None` for threads
    /// of its own.
    pub sessions: Option<Sessions>,
    /// Whether a front does not read metadata ahead at present, because other bytes are more urgent.
    pub pauses_metadata: Arc<AtomicBool>,
}

/// Called for every error that a client of the mount gets because of the image or its source.
pub type FaultSink = Arc<dyn Fn(&Error) + Send + Sync>;

/// Called for every read that the kernel sends, with the inode, the offset and the length in bytes.
pub type ReadSink = Arc<dyn Fn(Nid, u64, u32) + Send + Sync>;

/// An access to the image by a request of the kernel, for the recording of launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageAccess<'a> {
    /// A name was looked up and found.
    Found {
        /// The directory.
        parent: Nid,
        /// The name in it.
        name: &'a [u8],
        /// Its inode.
        nid: Nid,
        /// Whether it is a directory.
        is_directory: bool,
    },
    /// A name was looked up and does not exist.
    Missing {
        /// The directory.
        parent: Nid,
        /// The name.
        name: &'a [u8],
    },
    /// The target of a symbolic link was read.
    Link(Nid),
    /// A directory was listed from its beginning.
    List(Nid),
    /// A range of a file was read.
    Read(Nid, ByteRange),
}

/// Called for every access, except those of the thread that looks up the names of a launch.
pub type AccessSink = Arc<dyn Fn(ImageAccess<'_>) + Send + Sync>;

/// Called when a mount has ended, on a thread that must not wait.
pub type EndSink = Arc<dyn Fn() + Send + Sync>;

/// The entries that replies for directories contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readdir {
    /// Names with attributes for processes that were seen to use attributes, else names only.
    Adaptive,
    /// Names only.
    Plain,
    /// Names with attributes.
    Plus,
    /// Names with attributes if the kernel expects to need them.
    Auto,
}

/// The default maximum number of background requests. For the kernel, each read of a page that is not in memory is a
/// background request, and requests above the limit wait, even if they could be answered at once. So the limit must exceed
/// the number of concurrent misses.
const BACKGROUND_MAX: u16 = 4096;

/// The default duration of busy polling: about twice the time from a reply to the next request of the same program.
const BUSY_POLLING: Duration = Duration::from_micros(50);

impl Default for MountOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            kernel: KernelOptions::default(),
            uid: None,
            gid: None,
            // At least two, so that one can wait for the source.
            threads: NonZero::new(cpus.max(2)).unwrap_or(NonZero::<usize>::MIN),
            user_overlay: false,
            clone_fd: false,
            background_max: NonZero::new(BACKGROUND_MAX).unwrap_or(NonZero::<u16>::MIN),
            readdir: Readdir::Adaptive,
            deadline: Some(Duration::from_secs(60)),
            busy_polling: Some(BUSY_POLLING),
            direct_io: None,
            front_direct_io: false,
            closes_image: false,
        }
    }
}

impl From<&MountOptions> for MountSetup {
    fn from(options: &MountOptions) -> Self {
        Self { options: options.clone(), ..Self::default() }
    }
}

impl fmt::Debug for MountHooks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MountHooks").finish_non_exhaustive()
    }
}
