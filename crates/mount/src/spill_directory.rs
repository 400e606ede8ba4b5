//! The directory of the spill file.

use std::{
    io,
    path::{Path, PathBuf},
};

use floe::EngineOptions;
use floe_remote_cache::TrustedDirectory;

use crate::{log::MountLog, reachable_path::ReachablePath};

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
