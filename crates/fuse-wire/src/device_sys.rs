//! File descriptors of `/dev/fuse`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    ioctl::{self, Opcode, Setter},
};

/// The path of the device.
pub const DEVICE: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`. Its argument is the descriptor whose connection is joined.
const CLONE: Opcode = ioctl::opcode::read::<u32>(229, 0);

/// Opens the device, without a connection.
///
/// # Errors
/// The device does not exist, or this user may not open it.
pub fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens another descriptor of the connection of `device`.
pub(crate) fn join(device: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let joined = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())?;
    let number = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: the opcode is FUSE_DEV_IOC_CLONE, which reads a 32-bit descriptor number through its argument and keeps no
    // pointer to it.
    unsafe { ioctl::ioctl(&joined, Setter::<CLONE, u32>::new(number))? };
    Ok(joined)
}

/// Duplicates the descriptor `number` of this process.
///
/// # Errors
/// This process has no open descriptor with that number.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the borrow lasts for this call only, which fails with EBADF if `number` is not open. The number is not
    // -1.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(descriptor.as_fd(), 3)?)
}
