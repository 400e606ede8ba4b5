//! A source directory whose files are opened relative to its descriptor, never through symbolic links.

use std::{
    env,
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::{Errno, Result},
};

/// An open source directory.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    directory: OwnedFd,
    path: PathBuf,
    /// Whether paths are walked component by component. The C library has no `openat2` that a preloaded library could
    /// replace, and pseudo fails below a directory whose opening it has not seen.
    walks: bool,
}

impl SourceRoot {
    /// Opens the directory at `path`, which may be a symbolic link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { directory, path: path.to_path_buf(), walks: has_preloaded_library() })
    }

    /// The path of `inner`, for messages.
    pub(crate) fn path_of(&self, inner: &Path) -> PathBuf {
        if inner.as_os_str().is_empty() { self.path.clone() } else { self.path.join(inner) }
    }

    /// Opens `inner`, a path relative to the directory, or the directory itself if `inner` is empty. A symbolic link
    /// anywhere in it gives an error for which [`is_gone`] holds.
    pub(crate) fn open_below(&self, inner: &Path, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if inner.as_os_str().is_empty() {
            return rustix::fs::openat(&self.directory, c".", flags, Mode::empty());
        }
        if self.walks {
            return self.walk(inner, flags);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.directory, inner, flags, Mode::empty(), resolve) {
            // openat2 is missing before Linux 5.6, denied by some sandboxes, and fails for long paths.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => self.walk(inner, flags),
            result => result,
        }
    }

    /// As [`SourceRoot::open_below`], component by component.
    fn walk(&self, inner: &Path, flags: OFlags) -> Result<OwnedFd> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut names = inner.iter().peekable();
        let mut directory: Option<OwnedFd> = None;
        while let Some(name) = names.next() {
            if name == OsStr::new("..") {
                return Err(Errno::XDEV);
            }
            let flags = if names.peek().is_some() { step } else { flags };
            let below = directory.as_ref().unwrap_or(&self.directory);
            directory = Some(rustix::fs::openat(below, name, flags, Mode::empty())?);
        }
        directory.ok_or(Errno::NOENT)
    }
}

/// Whether a library may have replaced functions of the C library, as those of fakeroot and pseudo do.
pub(crate) fn has_preloaded_library() -> bool {
    env::var_os("LD_PRELOAD").is_some()
}

/// Whether an error means that a path no longer leads to the listed file.
pub(crate) fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE | Errno::NXIO)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn openat2_and_the_fallback_follow_no_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("source");
        fs::create_dir_all(source.join("a/b")).expect("made");
        fs::create_dir(folder.path().join("outside")).expect("made");
        fs::write(source.join("a/b/file"), "inside").expect("written");
        fs::write(folder.path().join("outside/file"), "outside").expect("written");
        symlink("b/file", source.join("a/to-file")).expect("linked");
        symlink("b", source.join("a/to-directory")).expect("linked");
        symlink("../../outside", source.join("a/out")).expect("linked");
        symlink(&source, folder.path().join("link")).expect("linked");
        for start in [source, folder.path().join("link")] {
            let root = SourceRoot::open(&start).expect("it is there");
            for (inner, is_found) in [
                ("a/b/file", true),
                ("a/b", true),
                ("a/to-file", false),
                ("a/to-directory/file", false),
                ("a/out/file", false),
                ("a/../../outside/file", false),
                ("a/nothing", false),
                ("a/b/file/below", false),
            ] {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let found = [root.open_below(Path::new(inner), flags), root.walk(Path::new(inner), flags)];
                for found in found {
                    match found {
                        Ok(_) => assert!(is_found, "{inner}"),
                        Err(error) => assert!(!is_found && is_gone(error), "{inner}: {error}"),
                    }
                }
            }
        }
    }
}
