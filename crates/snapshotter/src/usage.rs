//! What directories take on disk.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::record::Usage;

impl Usage {
    /// What the tree at `root` takes: each inode once. Entries that vanish meanwhile are not counted.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub(crate) fn of_tree(root: &Path) -> io::Result<Self> {
        let (mut usage, mut seen) = (Self::default(), HashSet::new());
        let mut pending: Vec<PathBuf> = vec![root.to_owned()];
        while let Some(path) = pending.pop() {
            let metadata = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.nlink() < 2 || metadata.is_dir() || seen.insert((metadata.dev(), metadata.ino())) {
                usage.inodes += 1;
                usage.bytes += metadata.blocks() * 512;
            }
            if metadata.is_dir() {
                for entry in fs::read_dir(&path)? {
                    pending.push(entry?.path());
                }
            }
        }
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_count_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("directory")).expect("made");
        fs::write(at("directory/file"), vec![1; 100_000]).expect("written");
        let before = Usage::of_tree(folder.path()).expect("read");
        assert!(before.inodes == 3 && before.bytes >= 100_000, "{before:?}");
        fs::hard_link(at("directory/file"), at("link")).expect("made");
        std::os::unix::fs::symlink("/", at("symlink")).expect("made");
        let after = Usage::of_tree(folder.path()).expect("read");
        assert!(after.inodes == 4 && after.bytes < before.bytes + 50_000, "{after:?}");
    }
}
