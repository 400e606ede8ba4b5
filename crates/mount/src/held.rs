//! State that lives until the mount ends: the directory of the spill file, and paths that a confined process can follow.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use floe::EngineOptions;
use floe_keeper::Keeper;
use floe_remote_cache::TrustedDirectory;
use rustix::fs::{Mode, OFlags, open};

use crate::{handover::ServiceManager, log::MountLog};

/// State that lives until the mount ends; its drop ends the keeper.
pub(crate) struct Held {
    /// The image as users name it, without credentials.
    pub(crate) image: PathBuf,
    /// The process that mounts and unmounts for this one.
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) log: Arc<MountLog>,
    pub(crate) manager: Option<ServiceManager>,
    /// The pipe that gets a message when the mount works.
    pub(crate) notify_pipe: Option<ReachablePath>,
    /// Unmount after this time without use.
    pub(crate) idle: Option<Duration>,
    pub(crate) spill_directory: Option<SpillDirectory>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.end();
    }
}

/// A private directory for the spill file, so that the sandbox need not permit access to other files beside it.
pub(crate) struct SpillDirectory {
    /// Its path for the keeper, which removes it.
    pub(crate) made: PathBuf,
    directory: ReachablePath,
}

impl SpillDirectory {
    /// Creates the directory in the one that the options name, or else beside the image. Returns also the options to use; there is
    /// no spill file if the directory that the options name is not trusted, which is reported.
    pub(crate) fn create(image: &Path, options: EngineOptions, log: &MountLog) -> (EngineOptions, Option<Self>) {
        if options.spill_file_bytes == 0 {
            return (options, None);
        }
        let named = options.spill_file_directory.as_deref();
        if let Some(Err(error)) = named.map(TrustedDirectory::check) {
            log.remark(format_args!("continuing without a spill file: {error}"));
            return (EngineOptions { spill_file_bytes: 0, ..options }, None);
        }
        // The owner of the directory of the image can exchange the image as well.
        let beside = || image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match Self::create_in(named.unwrap_or_else(beside)) {
            Ok(directory) => {
                let spill_file_directory = Some(directory.path().to_owned());
                (EngineOptions { spill_file_directory, ..options }, Some(directory))
            }
            // The engine says why there is no spill file.
            Err(_) => (options, None),
        }
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let made = tempfile::Builder::new().prefix("floe-").tempdir_in(parent)?.keep();
        let directory = ReachablePath::new(&made)?;
        Ok(Self { made, directory })
    }

    /// The path for this process, also once it is confined.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

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
