//! Paths that a confined process can follow.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

/// A path to a file or directory that leads there also once the process is confined. A path such as `/proc/PID/cwd/name` then
/// leads nowhere, because a confined process may not look into other processes.
#[derive(Debug)]
pub(crate) struct ReachablePath {
    path: PathBuf,
    /// The file, if the path leads through its descriptor.
    _held: Option<OwnedFd>,
}

impl ReachablePath {
    /// Finds the path of a file or directory. The process must not be confined yet.
    ///
    /// # Errors
    /// There is nothing at `path`.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let wanted = identity(path)?;
        // In another mount namespace, the same path may lead to another file, or nowhere.
        if let Ok(canonical) = path.canonicalize()
            && identity(&canonical).is_ok_and(|found| found == wanted)
        {
            return Ok(Self { path: canonical, _held: None });
        }
        let held = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path: format!("/proc/self/fd/{}", held.as_raw_fd()).into(), _held: Some(held) })
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_leads_to_the_same_file() {
        let folder = tempfile::tempdir().expect("a directory");
        let place = folder.path().join("file");
        fs::write(&place, "kept").expect("ours");
        let opened = fs::File::open(&place).expect("ours");
        let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let read = |path: &Path| fs::read_to_string(ReachablePath::new(path).expect("there").path()).expect("readable");
        assert_eq!((read(&place), read(&by_descriptor)), ("kept".to_owned(), "kept".to_owned()));
        // The name behind the descriptor now belongs to another file.
        fs::remove_file(&place).expect("ours");
        fs::write(&place, "new").expect("ours");
        assert_eq!((read(&place), read(&by_descriptor)), ("new".to_owned(), "kept".to_owned()));
        assert!(ReachablePath::new(&folder.path().join("missing")).is_err());
    }
}
