//! The bytes of a file as a shared mapping shows them.

use std::{fs::File, io, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

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
