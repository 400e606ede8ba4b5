//! Reads the label of a file system.

use std::{fs::File, io};

use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// `FS_IOC_GETFSLABEL`.
pub(crate) const GET_LABEL: Opcode = opcode::read::<[u8; 256]>(0x94, 49);

/// Returns the label of the file system of `file`, as the kernel reports it.
pub(crate) fn label(file: &File) -> io::Result<[u8; 256]> {
    // SAFETY: the opcode is FS_IOC_GETFSLABEL, which writes at most 256 bytes through its argument.
    unsafe { Ok(ioctl(file, Getter::<GET_LABEL, [u8; 256]>::new())?) }
}
