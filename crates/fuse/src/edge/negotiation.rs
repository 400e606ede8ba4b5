//! The terms of the connection that INIT negotiates with the kernel.

use std::num::NonZero;

use floe_engine::machine_page_bytes;
use floe_fuse_wire::{Agreement, InitFlags, Offer, Terms};
use floe_keeper::Access;

use crate::{
    MountOptions, MountSetup, Readdir, Rings,
    connection::{READ_BYTES_MAX, WRITE_BYTES_MAX},
};

/// The features that an immutable file system always requests, if the kernel offers them.
const ALWAYS: InitFlags = InitFlags::ASYNC_READ
    // Distinguishes an aborted connection, whose mount still exists, from an unmounted one.
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    // Node numbers are functions of the image, so the kernel may forget a node and later use its number alone.
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::HAS_RESEND);

/// Zero-message opens: after one `ENOSYS` reply, the kernel opens files or directories without a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ZeroMessageOpens {
    /// For files.
    pub(crate) files: bool,
    /// For directories.
    pub(crate) directories: bool,
}

/// The terms to request for a mount. `has_acls` is whether the format has access control lists.
pub(crate) fn terms(offer: &Offer, setup: &MountSetup, has_acls: bool) -> Terms {
    let MountSetup { options, handles, .. } = setup;
    let mut flags = ALWAYS;
    match options.readdir {
        Readdir::Plain => {}
        Readdir::Adaptive | Readdir::Plus => flags |= InitFlags::DO_READDIRPLUS,
        Readdir::Auto => flags |= InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO,
    }
    let acl = options.kernel.applies_acls() && has_acls;
    if acl {
        flags |= InitFlags::POSIX_ACL;
    }
    if (options.kernel.checks_permissions || acl) && options.kernel.access() != Access::OwnerAndRoot {
        // The kernel accepts this flag only if it checks permissions itself; POSIX_ACL includes that. With it, requests do not
        // state the user, which access by owner and root only requires.
        flags |= InitFlags::ALLOW_IDMAP;
    }
    if handles.rings.as_ref().is_some_and(Rings::are_available) {
        flags |= InitFlags::OVER_IO_URING;
    }
    let background = NonZero::get(options.background_max);
    Terms {
        flags,
        readahead_bytes_max: offer.readahead_bytes_max,
        background_max: background,
        congestion_threshold: (background / 4 * 3).max(1),
        write_bytes_max: WRITE_BYTES_MAX,
        pages_max: u16::try_from(READ_BYTES_MAX as usize / machine_page_bytes()).unwrap_or(u16::MAX).max(1),
        time_granularity_ns: 1,
        // A timeout in the kernel would abort the connection and leave a dead mount. Our deadline ends single requests.
        request_timeout_s: 0,
    }
}

impl ZeroMessageOpens {
    /// The zero-message opens that the negotiated terms and the options permit.
    pub(crate) fn new(agreement: &Agreement, options: &MountOptions) -> Self {
        if options.kernel.access() == Access::OwnerAndRoot {
            // Without open requests, the edge could not refuse other users.
            return Self::default();
        }
        Self {
            // The reply to an open of the large file tells the kernel to read past its page cache.
            files: agreement.flags.contains(InitFlags::NO_OPEN_SUPPORT) && options.direct_io.is_none(),
            directories: agreement.flags.contains(InitFlags::NO_OPENDIR_SUPPORT),
        }
    }
}
