//! The volume label of a mounted file system.

use std::{fs::File, io};

use rustix::ioctl::{self, Getter, Opcode};

/// `FS_IOC_GETFSLABEL`.
const GET_LABEL: Opcode = ioctl::opcode::read::<[u8; 256]>(0x94, 49);

/// The label of the file system that contains a file, as its mount reports it.
///
/// # Errors
/// The file system does not support labels.
pub fn file_system_label(file: &File) -> io::Result<Vec<u8>> {
    // SAFETY: the opcode is FS_IOC_GETFSLABEL, which writes at most 256 bytes to its argument; any bytes are valid there.
    let label = unsafe { ioctl::ioctl(file, Getter::<GET_LABEL, [u8; 256]>::new())? };
    Ok(label.into_iter().take_while(|byte| *byte != 0).collect())
}
