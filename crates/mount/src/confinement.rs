//! Confines this process to its work on one image.

use std::{os::fd::OwnedFd, path::Path, sync::Arc};

use floe::{ImageFiles, OpenError, OpenOptions, remote::RemoteProcess};
use floe_sandbox::{Access, Enforced, Mode, Policy, Sandbox};

#[cfg(debug_assertions)]
use crate::compromised;
use crate::{failure::Failure, remote::RemoteFiles};

/// The open files of an image in a confined process.
pub struct Opened {
    /// The files.
    pub files: ImageFiles,
    /// The directory of an extraction.
    pub tree: Option<OwnedFd>,
    /// The restrictions of the process.
    pub enforced: Enforced,
    /// The process that fetches the image, if it is remote.
    pub remote: Option<Arc<RemoteProcess>>,
}

impl Opened {
    /// The files of the image, and the directory of an extraction.
    pub fn split(opened: Result<Self, OpenError>) -> (Result<ImageFiles, OpenError>, Option<OwnedFd>) {
        match opened {
            Ok(Self { files, tree, .. }) => (Ok(files), tree),
            Err(error) => (Err(error), None),
        }
    }
}

/// The rights of a process that reads an image and writes only to open files.
pub fn reading() -> Policy {
    let mut policy = Policy::default();
    // Files that the engine reads to learn about the machine.
    policy.allow("/proc/self", Access::Read);
    for path in ["/proc/loadavg", "/proc/meminfo", "/proc/pressure/memory"] {
        policy.allow(path, Access::Read);
    }
    policy.allow("/dev/null", Access::ReadWrite);
    policy
}

/// Opens the files of an image, of which `remote` fetches those that are remote, and confines the process to `policy`. The
/// outer error is the sandbox's.
///
/// # Errors
/// The process cannot be confined.
pub fn open_from(
    remote: RemoteFiles,
    path: &Path,
    options: &OpenOptions,
    mut policy: Policy,
    mode: Mode,
) -> Result<Result<Opened, OpenError>, Failure> {
    if let Some(directory) = &options.device_directory {
        policy.allow_opening(directory, Access::Read);
    }
    #[cfg(debug_assertions)]
    compromised::prepare();
    let (mut sandbox, (named, options)) = Sandbox::enter(policy, mode, || remote.named_files(path, options))?;
    let files = match named.and_then(|named| ImageFiles::of_named(named, &options)) {
        Ok(files) => files,
        Err(error) => return Ok(Err(error)),
    };
    let tree = sandbox.take_tree();
    let enforced = sandbox.seal()?;
    #[cfg(debug_assertions)]
    compromised::on_a_thread();
    Ok(Ok(Opened { files, tree, enforced, remote: remote.image }))
}
