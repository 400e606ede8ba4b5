//! How an image is mounted.

use std::{fmt, num::NonZero, sync::Arc, time::Duration};

use floe_image::{ByteRange, Error, Nid};

use crate::{Keeper, connection::rings::Rings};

/// Is told of every error that a client of the mount gets because of the image or its source.
pub type FaultSink = Arc<dyn Fn(&Error) + Send + Sync>;

/// Is told of every read that the kernel sends: the inode, the first byte, and how many.
pub type ReadSink = Arc<dyn Fn(Nid, u64, u32) + Send + Sync>;

/// A request of the kernel, as far as it tells what a launch needs.
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
        /// Whether that is a directory.
        is_directory: bool,
    },
    /// A name was looked up, and there is none.
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

/// Is told of every touch by other threads than the one that walks ahead of a launch.
pub type TouchSink = Arc<dyn Fn(Touch<'_>) + Send + Sync>;

/// How an image is mounted.
#[derive(Clone)]
pub struct MountOptions {
    /// What the mount table shows as the source: the path of the image.
    pub source: String,
    /// The kind that the mount table shows behind `fuse.`; where it is empty, `fuse` alone.
    pub subtype: String,
    /// Who may enter the mount; none: everybody where it is root's, as with a mount of the kernel, else its owner alone.
    pub access: Option<Access>,
    /// Whether the kernel checks the modes and owners in the image. Where it does not, who may enter may read everything.
    pub checks_permissions: bool,
    /// Whether the kernel checks permissions by the access control lists in the image.
    pub acl: bool,
    /// The flags that belong to the mount.
    pub flags: KernelFlags,
    /// Whether the mount goes away when this process dies. Needs fusermount3.
    pub auto_unmount: bool,
    /// The owner of everything, in place of the image's.
    pub uid: Option<u32>,
    /// The group of everything, in place of the image's.
    pub gid: Option<u32>,
    /// How many threads take requests, where that many are needed; those that are not rest.
    pub threads: NonZero<usize>,
    /// Whether each of them has its own descriptor of the device.
    pub clone_fd: bool,
    /// The rings over which the kernel sends requests, where it offers that; none: it sends them over `/dev/fuse`. Such a
    /// mount cannot be handed over.
    pub rings: Option<Rings>,
    /// How many readahead and other background requests the kernel may have under way.
    pub background_max: NonZero<u16>,
    /// How far the kernel reads ahead, in bytes; none: its default. Needs root beyond 128 KiB.
    pub read_ahead_bytes: Option<u32>,
    /// How directories are read.
    pub readdir: Readdir,
    /// How long a request may take before it is answered with `EIO`; none: without an end.
    pub deadline: Option<Duration>,
    /// How long a thread that has answered polls for the next request before it sleeps, where one program asks one thing
    /// after the other; none: no busy polling.
    pub busy_polling: Option<Duration>,
    /// Further options for the kernel, as they are given to it: `context=…`.
    pub kernel_options: Vec<String>,
    /// Is told of what goes wrong.
    pub faults: Option<FaultSink>,
    /// Is told what is read.
    pub reads: Option<ReadSink>,
    /// Is told what is touched. With the kernel's EROFS in front, reads alone are seen.
    pub touches: Option<TouchSink>,
    /// Mounts and unmounts, where this process gives up the right to.
    pub keeper: Option<Arc<Keeper>>,
}

/// Who may enter a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The user who mounted it.
    Owner,
    /// That user and root. The kernel lets everybody in, and requests of others are refused here; so nothing is kept in
    /// the kernel's caches of names and attributes, which would answer them.
    OwnerAndRoot,
    /// Every user.
    All,
}

/// The flags that belong to a mount, not to the file system. It is always read-only. By default an image gives nobody
/// privileges: neither set-user-id bits nor device files have an effect.
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

/// How directories are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readdir {
    /// Names with attributes for those who are seen to use them, names alone for the others.
    Adaptive,
    /// Names alone.
    Plain,
    /// Names with attributes, always.
    Plus,
    /// Names with attributes where the kernel expects to need them.
    Auto,
}

/// How many background requests the kernel may have under way by default. It takes each read of a page that is not in
/// memory for one, and lets those above the limit wait, also if they would be answered at once: so there must be room for
/// all misses that there may be.
const BACKGROUND_MAX: u16 = 4096;

/// How long threads poll for the next request by default: about twice what a program and its wake-up take between two
/// requests that follow one another.
const BUSY_POLLING: Duration = Duration::from_micros(50);

impl Default for MountOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            source: "floe".to_owned(),
            subtype: "floe".to_owned(),
            access: None,
            checks_permissions: true,
            acl: true,
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
            touches: None,
            keeper: None,
        }
    }
}

impl MountOptions {
    /// Who may enter.
    pub(crate) fn access(&self) -> Access {
        let is_root = || rustix::process::geteuid().is_root();
        self.access.unwrap_or_else(|| if is_root() { Access::All } else { Access::Owner })
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MountOptions").field("source", &self.source).finish_non_exhaustive()
    }
}
