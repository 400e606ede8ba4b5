//! What is agreed upon with the kernel at the start.

use std::num::NonZero;

use floe_engine::machine_page_bytes;
use floe_fuse_wire::{Agreement, InitFlags, Offer, Terms};

use crate::{
    Access, MountOptions, Readdir, Rings,
    connection::{READ_BYTES_MAX, WRITE_BYTES_MAX},
};

/// What a read-only file system that never changes can always use, where the kernel has it.
const ALWAYS: InitFlags = InitFlags::ASYNC_READ
    // Tells an aborted connection, whose mount is still there, from an unmounted one.
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    // A node's number tells its inode, so that the kernel may forget it and come back with the number alone.
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::HAS_RESEND);

/// Which opens the kernel stops sending once it is told that there is nothing to open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NeedlessOpens {
    /// Those of files.
    pub(crate) files: bool,
    /// Those of directories.
    pub(crate) directories: bool,
}

/// What the options do not tell of a mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether it was mounted with `default_permissions`.
    pub(crate) checks_permissions: bool,
    /// Whether the format has access control lists.
    pub(crate) has_acls: bool,
}

/// Asks for everything that serves `options`.
pub(crate) fn terms(offer: &Offer, options: &MountOptions, circumstances: Circumstances) -> Terms {
    let mut flags = ALWAYS;
    match options.readdir {
        Readdir::Plain => {}
        Readdir::Adaptive | Readdir::Plus => flags |= InitFlags::DO_READDIRPLUS,
        Readdir::Auto => flags |= InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO,
    }
    let acl = options.applies_acls() && circumstances.has_acls;
    if acl {
        flags |= InitFlags::POSIX_ACL;
    }
    if circumstances.checks_permissions || acl {
        // The kernel refuses the mount if it does not check permissions itself; access control lists make it.
        flags |= InitFlags::ALLOW_IDMAP;
    }
    if options.rings.as_ref().is_some_and(Rings::are_there) {
        flags |= InitFlags::OVER_IO_URING;
    }
    let background = NonZero::get(options.background_max);
    Terms {
        flags,
        read_ahead_bytes_max: offer.read_ahead_bytes_max,
        background_max: background,
        congestion_threshold: (background / 4 * 3).max(1),
        write_bytes_max: WRITE_BYTES_MAX,
        pages_max: u16::try_from(READ_BYTES_MAX as usize / machine_page_bytes()).unwrap_or(u16::MAX).max(1),
        time_granularity_ns: 1,
        // A kernel that aborts the connection leaves a dead mount; the deadline answers each request by itself.
        request_timeout_s: 0,
    }
}

impl NeedlessOpens {
    /// Those that the kernel knows how to leave out.
    pub(crate) fn new(agreement: &Agreement, options: &MountOptions) -> Self {
        if options.access() == Access::OwnerAndRoot {
            // Where the kernel does not ask, nobody can be refused.
            return Self::default();
        }
        Self {
            // The answer tells the kernel to read past its page cache.
            files: agreement.flags.contains(InitFlags::NO_OPEN_SUPPORT) && options.direct_io.is_none(),
            directories: agreement.flags.contains(InitFlags::NO_OPENDIR_SUPPORT),
        }
    }
}
