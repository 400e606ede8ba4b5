//! Descriptors that a service manager passes to this process at its start (sd_listen_fds(3)).

use std::{
    env,
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rustix::io::{FdFlags, fcntl_setfd};

/// The number of the first descriptor.
const FIRST: i32 = 3;

/// The maximum number of descriptors.
const COUNT_MAX: i32 = 4096;

/// Takes the descriptors that a service manager has passed to this process, with their names. The first call returns them;
/// later ones return nothing.
pub fn passed_descriptors() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok()?.parse::<i32>().ok();
    let is_meant = number("LISTEN_PID") == Some(rustix::process::getpid().as_raw_nonzero().get());
    if !is_meant || TAKEN.swap(true, Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, COUNT_MAX);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let open = (FIRST..FIRST + count).zip(names).filter_map(|(number, name)| {
        // SAFETY: LISTEN_PID names this process, so the service manager opened these descriptors for it. No other value owns
        // them, because they are taken once.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        match fcntl_setfd(&descriptor, FdFlags::CLOEXEC) {
            Ok(()) => Some((name, descriptor)),
            Err(_) => {
                // The descriptor is not open.
                std::mem::forget(descriptor);
                None
            }
        }
    });
    open.collect()
}
