//! Where the bytes of a file come from.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom},
    io::Errno,
};

use crate::error::{Error, Result};

/// What a file's blocks are counted in, in bytes.
const BLOCKS_UNIT: u64 = 512;

/// Where the bytes of a file come from.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A file that is opened when it is read, and must then be the one that was listed.
    Path { path: PathBuf, identity: Identity },
    /// A part of a file that is open. It is not checked for changes if it is our own.
    Region { file: Arc<File>, path: Arc<Path>, offset: u64, size: u64, identity: Option<Identity> },
    /// Parts of a file that is open, with holes between them.
    Sparse { file: Arc<File>, path: Arc<Path>, runs: Arc<[Run]>, size: u64, identity: Option<Identity> },
}

/// A run of bytes that is in a file somewhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Where it is to be.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) len: u64,
    /// Where it is.
    pub(crate) place: u64,
}

/// What tells that a file is the one that was listed, and did not change since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    pub(crate) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The device and inode number, by which hard links are found.
    pub(crate) fn inode(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl Content {
    /// The size in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Path { identity, .. } => identity.size,
            Self::Region { size, .. } | Self::Sparse { size, .. } => *size,
        }
    }

    /// What errors name it by.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Path { path, .. } => path,
            Self::Region { path, .. } | Self::Sparse { path, .. } => path,
        }
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> Result<OpenContent<'_>> {
        match self {
            Self::Path { path, identity } => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let opened = rustix::fs::open(path, flags, Mode::empty());
                let file = File::from(opened.map_err(|error| Error::source(path, "open")(error.into()))?);
                let metadata = file.metadata().map_err(Error::source(path, "look at"))?;
                if Identity::of(&metadata) != *identity {
                    return Err(Error::Changed { path: path.clone() });
                }
                let has_holes = metadata.blocks().saturating_mul(BLOCKS_UNIT) < metadata.size();
                let file = OpenFile::Own(file);
                Ok(OpenContent { content: self, file, identity: Some(*identity), has_holes })
            }
            Self::Region { file, identity, .. } | Self::Sparse { file, identity, .. } => {
                let file = OpenFile::Shared(file);
                Ok(OpenContent { content: self, file, identity: *identity, has_holes: false })
            }
        }
    }
}

/// A file that is open for reading.
pub(crate) struct OpenContent<'a> {
    content: &'a Content,
    file: OpenFile<'a>,
    identity: Option<Identity>,
    /// Whether there may be holes, which need not be read.
    has_holes: bool,
}

enum OpenFile<'a> {
    Own(File),
    Shared(&'a File),
}

impl OpenContent<'_> {
    /// Fills `output` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        match self.content {
            Content::Path { .. } if self.has_holes => self.read_data(offset, output),
            Content::Path { .. } => self.read_raw(offset, output),
            Content::Region { offset: start, .. } => self.read_raw(start.saturating_add(offset), output),
            Content::Sparse { runs, .. } => self.read_sparse(runs, offset, output),
        }
    }

    fn read_sparse(&self, runs: &[Run], offset: u64, output: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(output.len() as u64);
        output.fill(0);
        let first = runs.partition_point(|run| run.offset + run.len <= offset);
        for run in runs[first..].iter().take_while(|run| run.offset < end) {
            let (from, to) = (run.offset.max(offset), (run.offset + run.len).min(end));
            let index = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            self.read_raw(run.place + (from - run.offset), &mut output[index(from)..index(to)])?;
        }
        Ok(())
    }

    /// Reads a file with holes, which are not read.
    fn read_data(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        let seek = |from: SeekFrom| match rustix::fs::seek(self.file(), from) {
            // There is only a hole up to the end.
            Err(Errno::NXIO) => Ok(u64::MAX),
            result => result.map_err(|error| Error::source(self.content.path(), "read")(error.into())),
        };
        let end = offset.saturating_add(output.len() as u64);
        let index = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
        let mut at = offset;
        while at < end {
            let data = seek(SeekFrom::Data(at))?.clamp(at, end);
            output[index(at)..index(data)].fill(0);
            if data == end {
                break;
            }
            // A hole that begins there was made meanwhile: reading finds its zeros too.
            let hole = seek(SeekFrom::Hole(data))?.clamp(data + 1, end);
            self.read_raw(data, &mut output[index(data)..index(hole)])?;
            at = hole;
        }
        Ok(())
    }

    fn read_raw(&self, start: u64, output: &mut [u8]) -> Result<()> {
        self.file().read_exact_at(output, start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if self.identity.is_some() => {
                Error::Changed { path: self.content.path().into() }
            }
            _ => Error::source(self.content.path(), "read")(error),
        })
    }

    /// Fails if the file is another than the one that was listed, or changed since.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let Some(identity) = self.identity else { return Ok(()) };
        let metadata = self.file().metadata().map_err(Error::source(self.content.path(), "look at"))?;
        if Identity::of(&metadata) == identity {
            Ok(())
        } else {
            Err(Error::Changed { path: self.content.path().into() })
        }
    }

    fn file(&self) -> &File {
        match &self.file {
            OpenFile::Own(file) => file,
            OpenFile::Shared(file) => file,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zeros() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("file");
        let file = File::create(&path).expect("there is room");
        let len = 40_000_123;
        file.set_len(len).expect("there is room");
        let mut expected = vec![0; usize::try_from(len).expect("it is small")];
        for (offset, part_len) in [(0, 5), (1_000_000, 70_000), (9_999_999, 3), (30_000_000, 1 << 20)] {
            let bytes = &mut expected[offset..offset + part_len];
            bytes.fill(7);
            file.write_all_at(bytes, offset as u64).expect("there is room");
        }
        let identity = Identity::of(&file.metadata().expect("it is there"));
        let content = Content::Path { path, identity };
        let open = content.open().expect("it is there");
        assert!(open.has_holes, "the file system of temporary files has no holes");
        for (start, end) in [(0, expected.len()), (3, 2_000_000), (1_000_001, 1_000_002), (31_048_576, 40_000_123)] {
            let mut found = vec![1; end - start];
            open.read_at(start as u64, &mut found).expect("it can be read");
            assert!(found == expected[start..end], "bytes {start} to {end}");
        }
    }
}
