//! The options of a mount.

use std::{
    fmt,
    num::NonZero,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use floe_image::{ByteRange, Error, Nid};

use crate::{Keeper, connection::rings::Rings};

/// Called for every error that a client of the mount gets because of the image or its source.
pub type FaultSink = Arc<dyn Fn(&Error) + Send + Sync>;

/// Called for every read that the kernel sends, with the inode, the offset and the length in bytes.
pub type ReadSink = Arc<dyn Fn(Nid, u64, u32) + Send + Sync>;

/// An access to the image by a request of the kernel, for the recording of launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch<'a> {
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
pub type TouchSink = Arc<dyn Fn(Touch<'_>) + Send + Sync>;

/// The options of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// The source in the mount table: the path of the image.
    pub source: String,
    /// The subtype in the mount table: the type is `fuse.` and this, or `fuse` if it is empty.
    pub subtype: String,
    /// The users who may enter the mount. `None`: all users for a mount of root, as with a mount of the kernel, else only its
    /// owner.
    pub access: Option<Access>,
    /// Whether the kernel checks the modes and owners in the image. If not, all users who may enter may read everything.
    pub checks_permissions: bool,
    /// Whether the kernel applies the access control lists of the image; `None`: if all users may enter. To apply them, the
    /// kernel requests the list of each file that a program other than root's opens.
    pub acl: Option<bool>,
    /// The flags of the mount.
    pub flags: KernelFlags,
    /// Whether the mount is unmounted when this process dies. Needs fusermount3, or a keeper for a front.
    pub auto_unmount: bool,
    /// The owner of all inodes, instead of the image's owners.
    pub uid: Option<u32>,
    /// The group of all inodes, instead of the image's groups.
    pub gid: Option<u32>,
    /// The maximum number of threads that take requests. Threads that are not needed rest.
    pub threads: NonZero<usize>,
    /// Whether each of them has its own descriptor of the device.
    pub clone_fd: bool,
    /// The rings over which the kernel sends requests, if it offers that; `None` for `/dev/fuse`. Such a mount cannot be handed
    /// over.
    pub rings: Option<Rings>,
    /// The maximum number of readahead and other background requests that the kernel may have in progress.
    pub background_max: NonZero<u16>,
    /// The kernel's readahead in bytes; `None` for its default. Setting it needs root.
    pub read_ahead_bytes: Option<u32>,
    /// The entries that replies for directories contain.
    pub readdir: Readdir,
    /// How long a request may take before it is answered with `EIO`; `None` for no limit.
    pub deadline: Option<Duration>,
    /// How long a thread polls for the next request after a reply before it sleeps, while one program sends one request after
    /// the other; `None` for no busy polling.
    pub busy_polling: Option<Duration>,
    /// Further options that are passed to the kernel unchanged, such as `context=…`.
    pub kernel_options: Vec<String>,
    /// Called for errors.
    pub faults: Option<FaultSink>,
    /// Called for reads.
    pub reads: Option<ReadSink>,
    /// Behind a front: the file that the kernel reads past its page cache. The other file is the virtual image, whose metadata
    /// and data EROFS reads through the page cache, with readahead.
    pub direct_io: Option<Nid>,
    /// Whether the kernel's EROFS in front reads each file in requests of its own (Linux 6.15), so that accesses are exact.
    pub front_direct_io: bool,
    /// Called for accesses. With the kernel's EROFS in front, only for reads.
    pub touches: Option<TouchSink>,
    /// Whether a front does not read metadata ahead at present, because other bytes are more urgent.
    pub holds_metadata: Arc<AtomicBool>,
    /// Whether the image is closed as soon as the kernel has ended the connection, so that the file system of the image can be
    /// unmounted at once. Reads of the image fail from then on.
    pub closes_image: bool,
    /// Mounts and unmounts for this process. Without it, the process does so itself, and has no front.
    pub keeper: Option<Arc<Keeper>>,
}

/// The users who may enter a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The user who mounted it.
    Owner,
    /// That user and root. The kernel admits all users, and the FUSE edge refuses other users' requests. The kernel therefore
    /// caches no names and attributes, because it would show them to other users.
    OwnerAndRoot,
    /// Every user.
    All,
}

/// The flags of a mount, as opposed to the file system. A mount is always read-only. By default an image grants no
/// privileges: set-user-id bits and device files have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFlags {
    /// Set-user-id and set-group-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
}

impl Default for KernelFlags {
    fn default() -> Self {
        Self { nosuid: true, nodev: true, noexec: false, nosymfollow: false }
    }
}

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
            source: "floe".to_owned(),
            subtype: "floe".to_owned(),
            access: None,
            checks_permissions: true,
            acl: None,
            flags: KernelFlags::default(),
            auto_unmount: false,
            uid: None,
            gid: None,
            // At least two, so that one can wait for the source.
            threads: NonZero::new(cpus.max(2)).unwrap_or(NonZero::<usize>::MIN),
            clone_fd: false,
            rings: None,
            background_max: NonZero::new(BACKGROUND_MAX).unwrap_or(NonZero::<u16>::MIN),
            read_ahead_bytes: None,
            readdir: Readdir::Adaptive,
            deadline: Some(Duration::from_secs(60)),
            busy_polling: Some(BUSY_POLLING),
            kernel_options: Vec::new(),
            faults: None,
            reads: None,
            direct_io: None,
            front_direct_io: false,
            touches: None,
            holds_metadata: Arc::default(),
            closes_image: false,
            keeper: None,
        }
    }
}

impl MountOptions {
    /// The users who may enter; never the default.
    pub(crate) fn access(&self) -> Access {
        let is_root = || rustix::process::geteuid().is_root();
        self.access.unwrap_or_else(|| if is_root() { Access::All } else { Access::Owner })
    }

    /// Whether the kernel applies the access control lists of the image.
    pub fn applies_acls(&self) -> bool {
        self.acl.unwrap_or_else(|| self.access() == Access::All)
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MountOptions").field("source", &self.source).finish_non_exhaustive()
    }
}
