//! Where the bytes of a file come from.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

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
                let open = OpenContent { content: self, file: OpenFile::Own(file), identity: Some(*identity) };
                open.check_unchanged()?;
                Ok(open)
            }
            Self::Region { file, identity, .. } | Self::Sparse { file, identity, .. } => {
                Ok(OpenContent { content: self, file: OpenFile::Shared(file), identity: *identity })
            }
        }
    }
}

/// A file that is open for reading.
pub(crate) struct OpenContent<'a> {
    content: &'a Content,
    file: OpenFile<'a>,
    identity: Option<Identity>,
}

enum OpenFile<'a> {
    Own(File),
    Shared(&'a File),
}

impl OpenContent<'_> {
    /// Fills `output` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        match self.content {
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
