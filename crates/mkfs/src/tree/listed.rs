//! The files of source directories. A million of them are in memory, so those of a directory share its path.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::source_root::SourceRoot;

/// The unit of a file's block count, in bytes.
const BLOCKS_UNIT: u64 = 512;

/// A directory of a source, with the names in it.
#[derive(Debug)]
pub(crate) struct ListedDirectory {
    pub(crate) root: Arc<SourceRoot>,
    /// Its path below the source root.
    inner: Box<Path>,
    /// The names, one after the other.
    names: Box<[u8]>,
}

/// The place of a name in the names of its directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedName {
    start: u32,
    len: u16,
}

/// About how many bytes a file takes on its file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatedLen(u32);

impl ListedDirectory {
    /// Creates the directory at the path `inner` with these names; returns also their places.
    pub(crate) fn new(
        root: Arc<SourceRoot>,
        inner: &Path,
        names: &[OsString],
    ) -> (Self, impl Iterator<Item = ListedName> + use<>) {
        let bytes: Vec<u8> = names.iter().flat_map(|name| name.as_bytes()).copied().collect();
        let lens: Vec<usize> = names.iter().map(|name| name.len()).collect();
        let places = lens.into_iter().scan(0, |start, len| {
            let place = ListedName {
                start: u32::try_from(*start).unwrap_or(u32::MAX),
                len: u16::try_from(len).unwrap_or(u16::MAX),
            };
            *start += len;
            Some(place)
        });
        (Self { root, inner: inner.into(), names: bytes.into() }, places)
    }

    /// The path of a file below the source root.
    pub(crate) fn inner(&self, name: ListedName) -> PathBuf {
        let name = self.names.get(name.start as usize..).and_then(|rest| rest.get(..usize::from(name.len)));
        self.inner.join(OsStr::from_bytes(name.unwrap_or_default()))
    }

    /// The path of a file, for messages.
    pub(crate) fn path_of(&self, name: ListedName) -> PathBuf {
        self.root.path_of(&self.inner(name))
    }
}

impl AllocatedLen {
    /// The length of this many blocks of a file. More than 2 TiB count as 2 TiB.
    pub(crate) fn of_blocks(count: i64) -> Self {
        Self(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
    }

    /// The length in bytes.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0) * BLOCKS_UNIT
    }
}
