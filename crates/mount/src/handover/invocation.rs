//! How a process that serves a mount was started.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::{Deserialize, Serialize};

use crate::sealed_file::SealedFile;

/// The maximum length of an invocation in its file, in bytes: the kernel limits arguments to less.
const BYTES_MAX: u64 = 64 << 20;

/// How a process that serves a mount was started.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Invocation {
    /// The arguments, beginning with the name of the program.
    pub arguments: Vec<OsString>,
    /// The working directory at the start.
    pub working_directory: OsString,
    /// Its number.
    pub process: u32,
    /// Whether a service manager waits for messages of the process.
    pub is_service: bool,
}

/// An invocation in a sealed memory file, which is from the time before the process read the image. `floe upgrade` runs what is in
/// it.
#[derive(Debug)]
pub(crate) struct SealedInvocation(SealedFile);

impl SealedInvocation {
    /// How this process was started. Must be called before the working directory changes.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors.
    pub(crate) fn of_this_process(is_service: bool) -> io::Result<Self> {
        let invocation = Invocation {
            arguments: std::env::args_os().collect(),
            working_directory: std::env::current_dir().map_or_else(|_| "/".into(), Into::into),
            process: std::process::id(),
            is_service,
        };
        SealedFile::new("floe-invocation", &serde_json::to_vec(&invocation)?).map(Self)
    }

    /// The file, for another process.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The invocation of another process.
    ///
    /// # Errors
    /// The file is not sealed, or is from another version of Floe.
    pub(crate) fn read(descriptor: OwnedFd) -> io::Result<Invocation> {
        let unreliable = |_| io::Error::other("the process does not say reliably how it was started");
        let bytes = SealedFile::of(descriptor).map_err(unreliable)?.bytes(BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|_| io::Error::other("the process is another version of Floe"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_survives_its_file() {
        let sealed = SealedInvocation::of_this_process(false).expect("memory");
        let copy = sealed.descriptor().try_clone_to_owned().expect("a descriptor");
        assert_eq!(SealedInvocation::read(copy).expect("an invocation").process, std::process::id());
        let other = SealedFile::new("other", b"{").expect("memory");
        assert!(SealedInvocation::read(other.as_fd().try_clone_to_owned().expect("a descriptor")).is_err());
    }
}
