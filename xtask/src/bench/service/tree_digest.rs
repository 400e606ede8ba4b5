//! The digest of all files of a tree, to see that contenders read the same bytes.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use xxhash_rust::xxh3::Xxh3;

use crate::{
    bench::listing::ListedFile,
    task_error::{During, Outcome},
};

/// The size of reads.
const READ_BYTES: usize = 256 << 10;

/// A digest of the names, lengths and bytes of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TreeDigest(u128);

impl TreeDigest {
    /// Reads the listed files below `root`.
    pub(super) fn of(root: &Path, files: &[ListedFile]) -> Outcome<Self> {
        let mut digest = Xxh3::new();
        let mut buffer = vec![0; READ_BYTES];
        for file in files {
            let path = file.path.as_os_str().as_bytes();
            digest.update(&(path.len() as u64).to_le_bytes());
            digest.update(path);
            let len = update(&mut digest, &root.join(&file.path), &mut buffer).during(file.path.display())?;
            digest.update(&len.to_le_bytes());
        }
        Ok(Self(digest.digest128()))
    }

    /// The digest as text.
    pub(super) fn text(self) -> String {
        format!("{:032x}", self.0)
    }
}

fn update(digest: &mut Xxh3, path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut bytes = 0;
    loop {
        let len = file.read(buffer)?;
        if len == 0 {
            return Ok(bytes);
        }
        digest.update(&buffer[..len]);
        bytes += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bench::listing;

    #[test]
    fn a_changed_byte_or_name_changes_the_digest() {
        let folder = tempfile::tempdir().expect("a directory");
        let digest = || {
            let files = listing::list(folder.path()).expect("listed");
            TreeDigest::of(folder.path(), &files).expect("read")
        };
        fs::write(folder.path().join("a"), "text").expect("written");
        let first = digest();
        assert_eq!(digest(), first);
        fs::write(folder.path().join("a"), "test").expect("written");
        assert_ne!(digest(), first);
        fs::write(folder.path().join("a"), "text").expect("written");
        fs::rename(folder.path().join("a"), folder.path().join("b")).expect("renamed");
        assert_ne!(digest(), first);
    }
}
