//! The rights of a confined process, such as its capabilities.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities};

use crate::{Calls, SandboxError};

/// The rights of a confined process. The default permits little more than the use of open files.
#[derive(Debug, Default)]
pub struct Policy {
    /// The directory of an extraction: files of all types can be created, changed, linked and removed beneath it. If the process
    /// has the right to mount, everything outside becomes read-only for it, and devices beneath cannot be opened.
    pub tree: Option<OwnedFd>,
    /// Paths that stay accessible until the end.
    pub grants: Vec<Grant>,
    /// Paths that are accessible only until the sandbox is sealed.
    pub opening: Vec<Grant>,
    /// System calls beyond the basic set.
    pub calls: Calls,
    /// Capabilities that the process keeps after sealing, if it has them.
    pub capabilities: Vec<Capability>,
}

/// A file or directory and the access to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
}

/// Access to a file, or to everything beneath a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Access {
    /// Read.
    Read,
    /// Write to existing files.
    Write,
    /// Read and write existing files, and create unnamed ones; ioctls of devices.
    ReadWrite,
    /// Rename and remove sockets.
    Sockets,
    /// Create, read, write, rename and remove regular files.
    Files,
}

impl Policy {
    /// Allows `access` to a path. Ignores missing paths: they cannot be accessed anyway.
    pub fn allow(&mut self, path: impl Into<PathBuf>, access: Access) {
        self.grants.push(Grant { path: path.into(), access });
    }

    /// Allows `access` to a path until the sandbox is sealed.
    pub fn allow_opening(&mut self, path: impl AsRef<Path>, access: Access) {
        self.opening.push(Grant { path: path.as_ref().to_owned(), access });
    }
}

/// A capability that some task needs (capabilities(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Capability {
    /// Change owners.
    Chown,
    /// Bypass file permissions.
    DacOverride,
    /// Change modes, times and attributes of files of other users.
    Fowner,
    /// Keep set-user-id bits.
    Fsetid,
    /// Lock memory beyond the limit.
    IpcLock,
    /// Create device files.
    Mknod,
    /// Set file capabilities.
    Setfcap,
    /// Set extended attributes `trusted.` and `security.`. The capability permits far more, which the system call
    /// filter denies.
    SysAdmin,
    /// Schedule threads in real time.
    SysNice,
}

const ALL: [(Capability, CapabilitySet, &str); 9] = [
    (Capability::Chown, CapabilitySet::CHOWN, "CAP_CHOWN"),
    (Capability::DacOverride, CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (Capability::Fowner, CapabilitySet::FOWNER, "CAP_FOWNER"),
    (Capability::Fsetid, CapabilitySet::FSETID, "CAP_FSETID"),
    (Capability::IpcLock, CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
    (Capability::Mknod, CapabilitySet::MKNOD, "CAP_MKNOD"),
    (Capability::Setfcap, CapabilitySet::SETFCAP, "CAP_SETFCAP"),
    (Capability::SysAdmin, CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (Capability::SysNice, CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
];

/// The capabilities of this thread by name; those without a [`Capability`] appear as one "others".
pub fn held_capabilities() -> Vec<String> {
    let Ok(mut left) = capabilities(None).map(|sets| sets.permitted) else { return Vec::new() };
    let mut names = Vec::new();
    for (_, bit, name) in ALL {
        if left.contains(bit) {
            left.remove(bit);
            names.push(name.to_owned());
        }
    }
    if !left.is_empty() {
        names.push("others".to_owned());
    }
    names
}

/// Drops all capabilities of this thread, and of the threads it starts, except `kept`.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn keep(kept: &[Capability]) -> Result<(), SandboxError> {
    let failed = |error| SandboxError::failed("capabilities", std::io::Error::from(error));
    let held = capabilities(None).map_err(failed)?;
    let wanted = ALL.iter().filter(|(capability, ..)| kept.contains(capability));
    let wanted = wanted.fold(CapabilitySet::empty(), |set, (_, bit, _)| set | *bit);
    let (effective, permitted) = (held.effective & wanted, held.permitted & wanted);
    // A kernel without ambient capabilities has none to clear.
    let _ = clear_ambient_capability_set();
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() }).map_err(failed)
}
