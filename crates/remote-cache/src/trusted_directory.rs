//! Directories whose content no other user can change.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat},
    io::Errno,
};

use crate::trusted_path::{self, Missing, check_own, refusal};

/// The permissions of new directories and files.
const DIRECTORY_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// How many names of new files to try.
const NAME_ATTEMPTS_MAX: u32 = 1000;

/// How deep a removed directory may contain others.
const REMOVED_DEPTH_MAX: u32 = 16;

/// An open directory of this user whose content only this user and root can change.
///
/// Each of its parent directories belongs to this user or to root, and is not writable by others, unless its sticky bit prevents
/// them from replacing files of other users. Symbolic links in the path are followed under the same condition. The directory
/// itself belongs to this user. Its content is opened relative to the descriptor and never through a link.
#[derive(Debug)]
pub struct TrustedDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl TrustedDirectory {
    /// Checks that only root and this user can replace files of this user in a directory, which may be shared like `/tmp`.
    ///
    /// # Errors
    /// As for [`TrustedDirectory::create`]; nothing is created.
    pub fn check(directory: &Path) -> io::Result<()> {
        trusted_path::open(directory, Missing::Refused).map(drop)
    }

    /// Opens the directory `name` in the directory at `parent`. Creates missing directories.
    ///
    /// # Errors
    /// Another user could change the content (the message names the directory, its owner, and a remedy), or a directory cannot
    /// be created or opened.
    pub fn create(parent: &Path, name: &str) -> io::Result<Self> {
        Self::enter(&trusted_path::open(parent, Missing::Created)?, parent, name, Missing::Created)
    }

    /// Like [`TrustedDirectory::create`], but creates nothing.
    ///
    /// # Errors
    /// As for [`TrustedDirectory::create`], or the directory is missing.
    pub fn open(parent: &Path, name: &str) -> io::Result<Self> {
        Self::enter(&trusted_path::open(parent, Missing::Refused)?, parent, name, Missing::Refused)
    }

    /// Opens the directory `name` in this one, and creates it if it is missing.
    ///
    /// # Errors
    /// It cannot be created or opened, or belongs to another user.
    pub(crate) fn create_below(&self, name: &str) -> io::Result<Self> {
        Self::enter(&self.directory, &self.path, name, Missing::Created)
    }

    /// Opens the directory `name` in this one.
    ///
    /// # Errors
    /// It cannot be opened, or belongs to another user.
    pub fn open_below(&self, name: &str) -> io::Result<Self> {
        Self::enter(&self.directory, &self.path, name, Missing::Refused)
    }

    /// The path by which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// There is no such file.
    pub fn read_file(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::RDONLY)
    }

    /// Opens a regular file for reading and writing, which is created if `missing` says so.
    pub(crate) fn change_file(&self, name: &str, missing: Missing) -> io::Result<File> {
        let create = if missing == Missing::Created { OFlags::CREATE } else { OFlags::empty() };
        self.file(name, OFlags::RDWR | create)
    }

    /// Creates a file under a name that no other thread or process uses, for reading and writing.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new_file(&self) -> io::Result<(String, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..NAME_ATTEMPTS_MAX {
            let name = format!(".new-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            // Killed processes leave files, and another PID namespace has processes with the same IDs.
            match self.file(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return Ok((name, file?)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Renames a file or directory, which replaces an existing one.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn rename(&self, from: &str, to: &Self, name: &str) -> io::Result<()> {
        Ok(renameat(&self.directory, from, &to.directory, name)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.directory, name.as_ref(), AtFlags::empty())?)
    }

    /// Removes a file, or a directory with all that is in it.
    pub(crate) fn remove_all(&self, name: &str) -> io::Result<()> {
        remove_below(self.directory.as_fd(), OsStr::new(name), REMOVED_DEPTH_MAX)
    }

    /// The attributes of a file or directory. Follows no link.
    pub(crate) fn stat(&self, name: impl AsRef<OsStr>) -> io::Result<Stat> {
        Ok(statat(&self.directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The names in the directory; none if it cannot be read.
    pub(crate) fn names(&self) -> Vec<OsString> {
        names_in(self.directory.as_fd()).unwrap_or_default()
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // Opening a FIFO would wait for another process.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.directory, name, flags, FILE_MODE)?;
        check_own(&file, &self.path.join(name))?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
        }
        Ok(file.into())
    }

    fn enter(parent: &OwnedFd, parent_path: &Path, name: &str, missing: Missing) -> io::Result<Self> {
        let path = parent_path.join(name);
        if missing == Missing::Created {
            match mkdirat(parent, name, DIRECTORY_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(parent, name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refusal(&path, "it is not a directory", "remove it")),
            opened => opened?,
        };
        check_own(&directory, &path)?;
        Ok(Self { directory, path })
    }
}

impl AsFd for TrustedDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn names_in(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn remove_below(parent: BorrowedFd<'_>, name: &OsStr, depth: u32) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
        result => return Ok(result?),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    for name in names_in(directory.as_fd())? {
        match remove_below(directory.as_fd(), &name, depth - 1) {
            // Another process removes the same directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_exist_are_never_opened_as_new() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = TrustedDirectory::create(folder.path(), "own").expect("ours");
        let victim = folder.path().join("victim");
        fs::write(&victim, "text").expect("written");
        for number in 0..100 {
            let link = directory.path().join(format!(".new-{}-{number}", process::id()));
            std::os::unix::fs::symlink(&victim, link).expect("linked");
        }
        let (name, _file) = directory.new_file().expect("it is made");
        assert!(fs::symlink_metadata(directory.path().join(name)).expect("it is there").is_file());
        assert_eq!(fs::read(&victim).expect("read"), b"text");
    }

    #[test]
    fn directories_are_removed_with_their_content_and_links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = TrustedDirectory::create(folder.path(), "own").expect("ours");
        let victim = folder.path().join("victim");
        fs::create_dir_all(directory.path().join("gone/a/b")).expect("made");
        fs::create_dir(&victim).expect("made");
        fs::write(victim.join("file"), "text").expect("written");
        std::os::unix::fs::symlink(&victim, directory.path().join("gone/a/link")).expect("linked");
        directory.remove_all("gone").expect("removed");
        assert_eq!(directory.names(), Vec::<OsString>::new());
        assert!(victim.join("file").exists());
    }
}
