//! Files of a front, opened by their EROFS inode numbers.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::fs::{Mode, OFlags, openat};

/// `FILEID_INO64_GEN` of Linux: the inode number, upper half first, and a generation.
const HANDLE_KIND: i32 = 0x81;

/// The length of such a handle in bytes.
const HANDLE_BYTES: usize = 12;

const EMPTY_PATH: &CStr = c"";

/// A `struct file_handle` with its bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES],
}

/// A mount of the kernel's EROFS whose files can be opened by their inode numbers. It needs `CAP_DAC_READ_SEARCH`.
#[derive(Debug)]
pub(crate) struct FrontFiles {
    root: OwnedFd,
}

impl FrontFiles {
    /// The files of the mount whose root is `mount`.
    ///
    /// # Errors
    /// The root cannot be opened, or this kernel's EROFS has file handles of another kind.
    pub(crate) fn new(mount: BorrowedFd<'_>) -> io::Result<Self> {
        let root = openat(mount, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root_nid = rustix::fs::fstat(&root)?.st_ino;
        if handle_of(root.as_fd())? == Handle::new(root_nid) {
            Ok(Self { root })
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Opens the file with this EROFS inode number for reading.
    ///
    /// # Errors
    /// There is no such file, or the process may not open files by handle.
    pub(crate) fn open(&self, nid: u64) -> io::Result<OwnedFd> {
        let mut handle = Handle::new(nid);
        // SAFETY: the kernel reads the handle, whose layout is that of `struct file_handle` with its bytes behind it.
        let file = unsafe {
            libc::open_by_handle_at(
                self.root.as_raw_fd(),
                (&raw mut handle).cast(),
                libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOATIME,
            )
        };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and no other value owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }
}

impl Handle {
    fn new(nid: u64) -> Self {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&((nid >> 32) as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&(nid as u32).to_ne_bytes());
        Self { len: HANDLE_BYTES as u32, kind: HANDLE_KIND, bytes }
    }
}

/// The handle of a file, from the kernel.
fn handle_of(file: BorrowedFd<'_>) -> io::Result<Handle> {
    let mut handle = Handle { len: HANDLE_BYTES as u32, kind: 0, bytes: [0; HANDLE_BYTES] };
    let mut mount_id = 0;
    // SAFETY: the kernel writes at most `len` bytes of the handle, which has room for them, and one mount id.
    let result = unsafe {
        libc::name_to_handle_at(
            file.as_raw_fd(),
            EMPTY_PATH.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if result == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
}
