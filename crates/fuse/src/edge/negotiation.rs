//! What is agreed upon with the kernel at the start.

use std::num::NonZero;

use fuser::{InitFlags, KernelConfig};

use crate::{Access, MountOptions, Readdir, connection::WRITE_BYTES_MAX};

/// What a read-only file system that never changes can always use, where the kernel has it.
const ALWAYS: [InitFlags; 10] = [
    // Tells an aborted connection, whose mount is still there, from an unmounted one.
    InitFlags::FUSE_ABORT_ERROR,
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_HAS_RESEND,
];

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
    /// Whether an inode is found by its number alone.
    pub(crate) finds_by_number: bool,
    /// Whether the format has access control lists.
    pub(crate) has_acls: bool,
}

/// Asks for everything that serves `options`.
pub(crate) fn negotiate(
    config: &mut KernelConfig,
    options: &MountOptions,
    circumstances: Circumstances,
) -> NeedlessOpens {
    let mut wanted = ALWAYS.to_vec();
    match options.readdir {
        Readdir::Plain => {}
        Readdir::Plus => wanted.push(InitFlags::FUSE_DO_READDIRPLUS),
        Readdir::Auto => wanted.extend([InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO]),
    }
    let acl = options.acl && circumstances.has_acls;
    if acl {
        wanted.push(InitFlags::FUSE_POSIX_ACL);
    }
    if circumstances.checks_permissions || acl {
        // The kernel refuses the mount if it does not check permissions itself; access control lists make it.
        wanted.push(InitFlags::FUSE_ALLOW_IDMAP);
    }
    if circumstances.finds_by_number {
        wanted.push(InitFlags::FUSE_EXPORT_SUPPORT);
    }
    for flag in wanted {
        // A kernel without it does without it.
        let _ = config.add_capabilities(flag);
    }
    let _ = config.set_max_write(WRITE_BYTES_MAX);
    let background = NonZero::get(options.background_max);
    let _ = config.set_max_background(background);
    let _ = config.set_congestion_threshold((background / 4 * 3).max(1));
    if options.access() == Access::OwnerAndRoot {
        // Where the kernel does not ask, nobody can be refused.
        return NeedlessOpens::default();
    }
    let capabilities = config.capabilities();
    NeedlessOpens {
        files: capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
        directories: capabilities.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
    }
}
