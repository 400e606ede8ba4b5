//! Memory files that nobody can change.

use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// The seals: nobody can change the file.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// A sealed memory file. A confined process can create no memory file and add no seals, so it can pass one on, but not forge it.
#[derive(Debug)]
pub(crate) struct SealedFile(File);

impl SealedFile {
    /// Creates a file with these bytes.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors.
    pub(crate) fn new(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(bytes)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(Self(file))
    }

    /// The file of another process.
    ///
    /// # Errors
    /// It is not sealed ([`io::ErrorKind::PermissionDenied`]).
    pub(crate) fn of(descriptor: OwnedFd) -> io::Result<Self> {
        match fcntl_get_seals(&descriptor) {
            Ok(seals) if seals.contains(SEALS) => Ok(Self(descriptor.into())),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// There are more than `len_max` ([`io::ErrorKind::FileTooLarge`]).
    pub(crate) fn bytes(&self, len_max: u64) -> io::Result<Vec<u8>> {
        let len = self.0.metadata()?.len();
        let len = usize::try_from(len).ok().filter(|_| len <= len_max).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

impl AsFd for SealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<SealedFile> for OwnedFd {
    fn from(file: SealedFile) -> Self {
        file.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_files_count() {
        let sealed = SealedFile::new("sealed", b"bytes").expect("memory");
        assert!(sealed.0.write_at(b"{", 0).is_err(), "nobody changes it");
        let copy = sealed.as_fd().try_clone_to_owned().expect("a descriptor");
        let copy = SealedFile::of(copy).expect("it is sealed");
        assert_eq!(copy.bytes(5).expect("readable"), b"bytes");
        assert!(copy.bytes(4).is_err());
        for flags in [MemfdFlags::CLOEXEC, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING] {
            let mut other = File::from(memfd_create("other", flags).expect("memory"));
            other.write_all(b"bytes").expect("there is room");
            assert!(SealedFile::of(other.into()).is_err());
        }
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"bytes").expect("there is room");
        assert!(SealedFile::of(file.into()).is_err());
    }
}
