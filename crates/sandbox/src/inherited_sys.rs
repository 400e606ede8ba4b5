//! Closes the descriptors that this process has inherited.

use std::{
    fs,
    os::fd::{BorrowedFd, RawFd},
};

use rustix::{
    io::{FdFlags, fcntl_getfd},
    net::{SocketType, sockopt::socket_type},
    process::{Resource, getrlimit},
};

use crate::SandboxError;

/// The highest number that is tried if /proc does not list the descriptors.
const NUMBER_MAX: RawFd = 1 << 16;

/// The standard descriptors, which stay open.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Closes all inherited descriptors but the standard ones: through them, a confined process could reach what its policy forbids.
/// Every descriptor that this process has opened is closed on execution of a program; inherited ones are not.
///
/// # Errors
/// A standard descriptor is a datagram socket, which could send messages to any other one.
pub(crate) fn close() -> Result<(), SandboxError> {
    for number in STANDARD {
        if flags_of(number).is_some() && socket_type(borrowed(number)) == Ok(SocketType::DGRAM) {
            let reason = format!("descriptor {number} is a datagram socket: redirect it to a file or a pipe");
            return Err(SandboxError::failed("inherited descriptors", reason));
        }
    }
    let listed = fs::read_dir("/proc/self/fd").map(|list| {
        let names = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        names.collect::<Vec<RawFd>>()
    });
    let numbers = listed.unwrap_or_else(|_| (0..number_end()).collect());
    for number in numbers {
        let is_own = |flags: FdFlags| flags.contains(FdFlags::CLOEXEC);
        if !STANDARD.contains(&number) && flags_of(number).is_some_and(|flags| !is_own(flags)) {
            // SAFETY: no value of this process owns the descriptor, or it would be closed on execution.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// The flags of a descriptor, if it is open.
fn flags_of(number: RawFd) -> Option<FdFlags> {
    fcntl_getfd(borrowed(number)).ok()
}

fn borrowed<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the callers only ask about the descriptor, which the kernel refuses if it is not open.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// The end of the numbers that a descriptor can have.
fn number_end() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| RawFd::try_from(limit).ok());
    limit.unwrap_or(NUMBER_MAX).min(NUMBER_MAX)
}
