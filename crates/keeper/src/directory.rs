//! Open directories, so that changes of their paths have no effect.

use std::{
    ffi::OsString,
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, open, openat, readlinkat};

use crate::mount_id_sys::is_mount_root;

/// A directory to mount on, open since its path was resolved. The owner of a directory above can give the path another
/// meaning at any time, but what is mounted lands in this directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    file: OwnedFd,
}

/// A name in an open directory: the place of a mount, without a reference to the mount, which would make it busy.
#[derive(Debug)]
pub(crate) struct NameInParent {
    parent: OwnedFd,
    name: OsString,
}

impl Directory {
    /// Resolves a path, through links. It may lead to a file that is no directory.
    ///
    /// # Errors
    /// There is no such file, or a directory above cannot be searched.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let path = path_of(file.as_fd()).or_else(|_no_proc| fs::canonicalize(path))?;
        Ok(Self { path, file })
    }

    /// The directory that a descriptor refers to, which another process has opened with `O_PATH`.
    ///
    /// # Errors
    /// Its path cannot be determined: `/proc` is not mounted, or it is in another mount namespace.
    pub fn of_descriptor(file: OwnedFd) -> io::Result<Self> {
        let path = path_of(file.as_fd())?;
        Ok(Self { path, file })
    }

    /// The path that led to the directory when it was opened: absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path that leads to the directory now.
    pub(crate) fn path_now(&self) -> PathBuf {
        path_of(self.file.as_fd()).unwrap_or_else(|_no_proc| self.path.clone())
    }

    /// The name of the directory in the one above it.
    pub(crate) fn name_in_parent(&self) -> io::Result<NameInParent> {
        let parent = openat(&self.file, c"..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let name = self.path_now().file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok(NameInParent { parent, name })
    }

    /// As [`Directory::name_in_parent`], with the name that the directory had when it was opened. Needs no `/proc`.
    pub(crate) fn first_name_in_parent(&self) -> io::Result<NameInParent> {
        let parent = openat(&self.file, c"..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok(NameInParent { parent, name })
    }

    /// Whether something is mounted on the directory, or may be. Does not wait for the program that serves a mount.
    pub fn may_be_mountpoint(&self) -> bool {
        let name = self.name_in_parent().ok();
        name.and_then(|name| is_mount_root(name.parent(), name.name())).unwrap_or(true)
    }

    /// Another descriptor of the same directory.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), file: self.file.try_clone()? })
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl NameInParent {
    /// The last name of an absolute path, in the directory to which the rest of the path leads now.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let parent = open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { parent, name: name.to_owned() })
    }

    /// The directory with the name.
    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    pub(crate) fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// A path to the name that does not depend on the names above. Needs `/proc`.
    pub(crate) fn path(&self) -> PathBuf {
        self.parent_path().join(&self.name)
    }

    /// A path to the directory with the name, as [`NameInParent::path`].
    pub(crate) fn parent_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd()))
    }
}

/// The path of an open file, from `/proc`.
fn path_of(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let link = readlinkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new())?;
    Ok(OsString::from_vec(link.into_bytes()).into())
}
