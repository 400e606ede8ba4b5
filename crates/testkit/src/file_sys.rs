//! The volume label of the file system of a file, and the bytes of a file as a shared mapping shows them.

use std::{fs::File, io, ptr};

use rustix::{
    ioctl::{self, Getter, Opcode},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// `FS_IOC_GETFSLABEL`.
pub const GET_LABEL: Opcode = ioctl::opcode::read::<[u8; 256]>(0x94, 49);

/// The label of the file system that contains a file, as its mount reports it.
///
/// # Errors
/// The file system does not support labels.
pub fn file_system_label(file: &File) -> io::Result<Vec<u8>> {
    // SAFETY: the opcode is FS_IOC_GETFSLABEL, which writes at most 256 bytes to its argument; any bytes are valid there.
    let label = unsafe { ioctl::ioctl(file, Getter::<GET_LABEL, [u8; 256]>::new())? };
    Ok(label.into_iter().take_while(|byte| *byte != 0).collect())
}

/// The first `len` bytes of a file, read through a shared mapping of it.
///
/// # Errors
/// The file cannot be mapped.
pub fn mapped_bytes(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    // SAFETY: the mapping is new, at an address that the kernel chooses and that no other code knows. The caller passes
    // a file that no program changes and that has at least `len` bytes.
    unsafe {
        let address = mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)?;
        ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), len);
        munmap(address, len)?;
    }
    Ok(bytes)
}
