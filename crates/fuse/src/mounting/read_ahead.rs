//! The kernel's readahead size of a mount.

use std::{fs, io};

/// Sets how many bytes the kernel reads ahead in the file system with this device number. Needs root.
///
/// # Errors
/// sysfs is not mounted, or this process is not root.
pub(crate) fn set(device: (u32, u32), bytes: u32) -> io::Result<()> {
    let (major, minor) = device;
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (bytes / 1024).to_string())
}
