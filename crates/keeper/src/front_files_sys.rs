//! Files of a front, opened by their EROFS inode numbers.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};

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
        let root_nid = fstat(&root)?.st_ino;
        if handle_of(root.as_fd())? == Handle::new(root_nid) {
            Ok(Self { root })
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// The files of the mount with this root, which [`FrontFiles::new`] has opened in an earlier program of this process.
    pub(crate) fn of_root(root: OwnedFd) -> Self {
        Self { root }
    }

    /// The root.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens the regular file with this EROFS inode number for reading. The process that serves the mount may present a device or a
    /// FIFO instead, which must not be opened.
    ///
    /// # Errors
    /// There is no such file, or the process may not open files by handle.
    pub(crate) fn open(&self, nid: u64) -> io::Result<OwnedFd> {
        // As long as this descriptor is open, the inode stays in memory, with its type.
        let pinned = self.open_as(nid, libc::O_PATH)?;
        if FileType::from_raw_mode(fstat(&pinned)?.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.open_as(nid, libc::O_RDONLY | libc::O_NOATIME)
    }

    fn open_as(&self, nid: u64, flags: i32) -> io::Result<OwnedFd> {
        let mut handle = Handle::new(nid);
        // SAFETY: the kernel reads the handle, whose layout is that of `struct file_handle` with its bytes behind it.
        let file = unsafe {
            libc::open_by_handle_at(self.root.as_raw_fd(), (&raw mut handle).cast(), flags | libc::O_CLOEXEC)
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

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::{FileTypeExt, MetadataExt},
        path::Path,
    };

    use floe_testkit::{
        KernelMount,
        corpus::Corpus,
        skip::{self, Need},
    };

    use super::*;

    /// Opens everything below a directory by its inode number. Returns the number of FIFOs.
    fn open_all(files: &FrontFiles, directory: &Path) -> usize {
        let mut fifo_count = 0;
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("it exists");
            match files.open(metadata.ino()) {
                Ok(opened) => {
                    let opened = File::from(opened).metadata().expect("it is open");
                    assert_eq!((opened.ino(), opened.is_file()), (metadata.ino(), true), "{path:?}");
                }
                Err(error) => assert!(!metadata.is_file(), "{path:?}: {error}"),
            }
            fifo_count += usize::from(metadata.file_type().is_fifo());
            if metadata.is_dir() {
                fifo_count += open_all(files, &path);
            }
        }
        fifo_count
    }

    #[test]
    fn only_regular_files_are_opened() {
        if !skip::ready(&[Need::Root, Need::KernelErofs]) {
            return;
        }
        let corpus = Corpus::fixtures();
        let image = corpus.materialise(&corpus.image("erofs-plain-meta"));
        let mount = KernelMount::new(&image).expect("a mount");
        let root = File::open(mount.path()).expect("the root");
        let files = FrontFiles::new(root.as_fd()).expect("handles as Floe makes them");
        assert!(open_all(&files, &mount.path()) > 0, "there are FIFOs, which nobody writes to");
    }
}
