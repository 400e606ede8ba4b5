//! Files and block devices as sources.

use std::{
    fs::{self, File},
    io::{self, IoSliceMut, Seek, SeekFrom},
    num::NonZeroU64,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
    path::Path,
};

use floe_image::{ImageSource, SourceIdentity, SourceOrigin};
use rustix::{
    fs::{Advice, fadvise, fstatfs},
    io::{Errno, ReadWriteFlags, preadv2},
};

/// Magic numbers of the file systems that live in memory: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A regular file or block device, or a part of one, open for reading.
///
/// It is read by system calls, not mapped: if the file is truncated or the disk fails while it is open, the reader gets
/// an error instead of SIGBUS.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    /// Offset of the source within the file, in bytes.
    offset: u64,
    len: u64,
    nowait_reads: NowaitReads,
    /// `None` for block devices, which do not say when their content changes.
    origin: Option<SourceOrigin>,
}

/// How the source determines whether it can read bytes without blocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NowaitReads {
    /// The file system supports `RWF_NOWAIT`.
    Supported,
    /// The file system keeps all data in memory.
    InMemory,
    /// The file system does not support `RWF_NOWAIT`; examples are FUSE, NFS and overlayfs. The source assumes that
    /// bytes are not in memory.
    Unsupported,
}

impl FileSource {
    /// Opens a whole file.
    ///
    /// # Errors
    /// The file cannot be opened, or is neither a regular file nor a block device.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_part(path, 0, None)
    }

    /// Opens `len` bytes of a file from `offset` on, or all bytes from there if `len` is `None`.
    ///
    /// # Errors
    /// As for [`FileSource::open`], and if the file is shorter.
    pub fn open_part(path: impl AsRef<Path>, offset: u64, len: Option<u64>) -> io::Result<Self> {
        // Opening a FIFO would wait for a writer.
        check_type(&fs::metadata(&path)?)?;
        Self::new(File::open(path)?, offset, len)
    }

    /// Uses `len` bytes of an open file from `offset` on, or all bytes from there. The file's position does not matter.
    ///
    /// # Errors
    /// The file is neither a regular file nor a block device, or is shorter.
    pub fn new(mut file: File, offset: u64, len: Option<u64>) -> io::Result<Self> {
        let metadata = file.metadata()?;
        check_type(&metadata)?;
        // The metadata of a block device gives length 0.
        let file_len = if metadata.is_file() { metadata.len() } else { file.seek(SeekFrom::End(0))? };
        let rest = file_len.checked_sub(offset).ok_or_else(|| past_end(file_len))?;
        let len = len.unwrap_or(rest);
        if len > rest {
            return Err(past_end(file_len));
        }
        let nowait_reads = NowaitReads::of(&file);
        let origin = metadata.is_file().then(|| SourceOrigin::File {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        });
        Ok(Self { file, offset, len, nowait_reads, origin })
    }

    /// The offset of the source within the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether [`ImageSource::try_read_at`] can succeed. If not, it always returns `false`.
    pub fn supports_nowait(&self) -> bool {
        self.nowait_reads != NowaitReads::Unsupported
    }

    /// The offset within the file of `len` bytes at `offset` of the source.
    fn place(&self, offset: u64, len: usize) -> io::Result<u64> {
        let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
        match end {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl ImageSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let place = self.place(offset, output.len())?;
        // `read_exact_at` continues after short reads and interruptions.
        self.file.read_exact_at(output, place)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        match self.nowait_reads {
            NowaitReads::Unsupported => self.place(offset, output.len()).map(|_| false),
            NowaitReads::InMemory => self.read_at(offset, output).map(|()| true),
            NowaitReads::Supported => {
                let mut place = self.place(offset, output.len())?;
                let mut rest = output;
                while !rest.is_empty() {
                    // The bytes in memory may end before `rest` does; the next call then shows whether the file ends
                    // too.
                    match preadv2(&self.file, &mut [IoSliceMut::new(rest)], place, ReadWriteFlags::NOWAIT) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(count) => {
                            place += count as u64;
                            rest = &mut rest[count..];
                        }
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN | Errno::OPNOTSUPP) => return Ok(false),
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(true)
            }
        }
    }

    fn identity(&self) -> Option<SourceIdentity> {
        Some(SourceIdentity { origin: self.origin.clone()?, offset: self.offset, len: self.len })
    }

    fn will_need(&self, offset: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(offset));
        if let Some(len) = NonZeroU64::new(len) {
            // A hint: its failure does not matter.
            let _ = fadvise(&self.file, self.offset + offset, Some(len), Advice::WillNeed);
        }
    }

    fn dont_need(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, self.offset.saturating_add(offset), Some(len), Advice::DontNeed);
        }
    }
}

impl NowaitReads {
    fn of(file: &File) -> Self {
        let mut byte = [0];
        match preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                let is_memory = fstatfs(file).is_ok_and(|stat| MEMORY_FILE_SYSTEMS.contains(&(stat.f_type as u64)));
                if is_memory { Self::InMemory } else { Self::Unsupported }
            }
            _ => Self::Supported,
        }
    }
}

fn check_type(metadata: &fs::Metadata) -> io::Result<()> {
    let file_type = metadata.file_type();
    if file_type.is_file() || file_type.is_block_device() {
        return Ok(());
    }
    let (kind, what) = if file_type.is_dir() {
        (io::ErrorKind::IsADirectory, "a directory")
    } else if file_type.is_fifo() {
        (io::ErrorKind::InvalidInput, "a FIFO")
    } else if file_type.is_socket() {
        (io::ErrorKind::InvalidInput, "a socket")
    } else {
        (io::ErrorKind::InvalidInput, "a character device")
    };
    Err(io::Error::new(kind, format!("it is {what}, not a regular file or a block device")))
}

fn past_end(file_len: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the file is too short: it ends after {file_len} bytes"))
}
