//! How a process that serves a mount was started.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use serde::{Deserialize, Serialize};

/// The maximum length of an invocation in its file, in bytes: the kernel limits arguments to less.
const BYTES_MAX: u64 = 64 << 20;

/// The seals of an invocation's file: nobody can change it.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

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

/// An invocation in a sealed memory file. A confined process can create no memory file and add no seals, so a file with these
/// seals is from the time before it read the image. `floe upgrade` runs what is in it.
#[derive(Debug)]
pub(crate) struct SealedInvocation(File);

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
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("floe-invocation", flags)?);
        file.write_all(&serde_json::to_vec(&invocation)?)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(Self(file))
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
        let file = File::from(descriptor);
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !is_sealed {
            return Err(io::Error::other("the process does not say reliably how it was started"));
        }
        let len = file.metadata()?.len();
        let len = usize::try_from(len).ok().filter(|_| len <= BYTES_MAX).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0)?;
        serde_json::from_slice(&bytes).map_err(|_| io::Error::other("the process is another version of Floe"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_files_count() {
        let sealed = SealedInvocation::of_this_process(false).expect("memory");
        let copy = sealed.descriptor().try_clone_to_owned().expect("a descriptor");
        let invocation = SealedInvocation::read(copy).expect("an invocation");
        assert_eq!(invocation.process, std::process::id());
        assert!(sealed.0.write_at(b"{", 0).is_err(), "nobody changes it");
        let bytes = serde_json::to_vec(&invocation).expect("JSON");
        for flags in [MemfdFlags::CLOEXEC, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING] {
            let mut other = File::from(memfd_create("other", flags).expect("memory"));
            other.write_all(&bytes).expect("there is room");
            assert!(SealedInvocation::read(other.into()).is_err());
        }
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("there is room");
        assert!(SealedInvocation::read(file.into()).is_err());
    }
}
