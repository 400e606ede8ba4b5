//! Descriptors that this program gets at its start: from a service manager (sd_listen_fds(3)), or from the program that was executed in
//! this process before.

use std::{
    collections::BTreeSet,
    env, io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

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

/// Takes the descriptors that an earlier program of this process has left open for this one, by their numbers.
#[derive(Debug)]
pub struct InheritedDescriptors {
    taken: BTreeSet<RawFd>,
}

impl InheritedDescriptors {
    /// For the descriptors that the earlier program has written down in the file with this number, which is returned, too. Returns
    /// `None` but for the first call.
    ///
    /// # Errors
    /// The file was not left open.
    pub fn find(file: RawFd) -> io::Result<Option<(Self, OwnedFd)>> {
        static FOUND: AtomicBool = AtomicBool::new(false);
        if FOUND.swap(true, Relaxed) {
            return Ok(None);
        }
        let mut inherited = Self { taken: BTreeSet::new() };
        let file = inherited.take(file)?;
        Ok(Some((inherited, file)))
    }

    /// Takes a descriptor. No later program inherits it.
    ///
    /// # Errors
    /// It was not left open, or was taken already.
    pub fn take(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        if number < FIRST || !self.taken.insert(number) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: it is borrowed for the questions whether it is open and was left open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        // A descriptor of this program would be closed at the start of the next one.
        if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
        // SAFETY: it is open. The earlier program has opened it, because this one leaves none of its own open, so no other value owns
        // it, and it is taken once.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}
