//! The volume label of the file system of a file, and the bytes of a file as a shared mapping shows them.

use std::{ffi::c_void, fs::File, io, ptr};

use rustix::{
    ioctl::{self, Getter, Opcode},
    mm::{Advice as MapAdvice, MapFlags, ProtFlags, madvise, mmap, munmap},
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

/// The beginning of a file in a shared mapping. If its file system cannot provide the bytes, reading them ends the process (SIGBUS).
#[derive(Debug)]
pub struct MappedFile {
    address: *mut c_void,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `len` bytes of a file that no program changes, which has as many.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: the mapping is new, at an address that the kernel chooses and that no other code knows.
        let address = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(Self { address, len })
    }

    /// A copy of the bytes, as the mapping shows them now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the mapping has this many bytes, and exists as long as `self`.
        unsafe { ptr::copy_nonoverlapping(self.address.cast::<u8>(), bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Lets the process forget the pages. Only then can the kernel drop them from the page cache.
    pub fn forget(&self) {
        // SAFETY: the pages of a shared mapping are read again.
        let _ = unsafe { madvise(self.address, self.len, MapAdvice::LinuxDontNeed) };
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.address, self.len) };
    }
}
