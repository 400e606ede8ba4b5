//! Mounts that nobody else sees, and that go away with the thread that made them.

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;

/// Gives the calling thread, and what it will start, mounts of their own; mounts of others still come in.
///
/// Whether that was allowed: it needs root.
pub(crate) fn enter_private_mounts() -> bool {
    // SAFETY: NEWNS gives this thread its own working directory and root besides its own mounts; no memory or file
    // descriptor changes hands.
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    entered.is_ok() && rustix::mount::mount_change("/", flags).is_ok()
}
