//! A private mount namespace, which ends with the thread that created it.

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;

/// Gives the calling thread and its children a private mount namespace; mounts made outside still propagate into it.
///
/// Returns whether that was permitted: it needs root.
pub(crate) fn enter_private_mounts() -> bool {
    // SAFETY: NEWNS gives this thread its own working directory, root and mounts; memory and file descriptors stay
    // shared.
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    entered.is_ok() && rustix::mount::mount_change("/", flags).is_ok()
}
