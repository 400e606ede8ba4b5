//! Sources of image bytes, and metadata reads of a format.

use std::{io, sync::Arc};

use bytes::Bytes;

use crate::{DeviceId, Error, Result, StoredBlock};

/// A decoded block, and the offset at which the next one begins.
#[derive(Clone, Debug)]
pub struct DecodedBlock {
    /// The data.
    pub bytes: Bytes,
    /// The offset in the source after the block's stored bytes.
    pub stored_end: u64,
}

/// Serves metadata to a format through the engine's caches. It is designed for small, repeated reads; file data takes
/// another path.
pub trait BlockReader: Send + Sync {
    /// The number of sources; the image itself is always one.
    fn device_count(&self) -> u16;

    /// The length of a source in bytes.
    ///
    /// # Errors
    /// There is no such source.
    fn device_len(&self, device: DeviceId) -> Result<u64>;

    /// Returns `len` bytes of a source from `offset` on. `len` is at most `<dyn BlockReader>::STORED_LEN_MAX`.
    ///
    /// # Errors
    /// The source cannot be read or is shorter; `len` exceeds the limit.
    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes>;

    /// Returns all decoded bytes of a block.
    ///
    /// # Errors
    /// The source cannot be read or is shorter; the stored bytes do not decode to the length that the block states.
    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock>;

    /// Adds a source that is composed of others, and returns the number by which extents refer to it.
    /// [`BlockReader::device_count`] does not count it. Reading it may call this reader again.
    ///
    /// # Errors
    /// The reader does not support derived sources.
    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let _ = source;
        Err(Error::unsupported("derived sources"))
    }
}

impl dyn BlockReader {
    /// The limit of one [`BlockReader::stored`] call: 1 MiB.
    pub const STORED_LEN_MAX: usize = 1 << 20;
}

/// Random access to the bytes of an image or extra device. Callers assume that the bytes do not change while the source
/// is open.
pub trait ImageSource: Send + Sync {
    /// The length in bytes.
    fn len(&self) -> u64;

    /// Whether the source is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `output` with the bytes from `offset` on. May block.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::UnexpectedEof`] if the source ends before `output` is full.
    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()>;

    /// As [`ImageSource::read_at`], but without blocking: returns `false` if the bytes are not in memory. The contents
    /// of `output` are then unspecified.
    ///
    /// # Errors
    /// As for [`ImageSource::read_at`].
    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, output).map(|()| true)
    }

    /// What tells the bytes of this source from those of all others; `None` if that is not known. An engine caches the bytes of
    /// sources with equal identities once.
    fn identity(&self) -> Option<SourceIdentity> {
        None
    }

    /// Hints that the `len` bytes from `offset` on will be read soon. Never blocks or fails.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Whether the source itself fetches bytes around those that are read, as far as that pays. Its readers then request only what
    /// they expect to read.
    fn reads_around(&self) -> bool {
        false
    }

    /// Hints that the `len` bytes from `offset` on are unlikely to be read again, so that a cache may drop them. Never
    /// fails.
    fn dont_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}

/// What tells the bytes of a source from those of all others. Sources with equal identities have equal bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourceIdentity {
    /// What contains the bytes of the source.
    pub origin: SourceOrigin,
    /// The offset of the source in it, in bytes.
    pub offset: u64,
    /// The length of the source in bytes.
    pub len: u64,
}

/// What contains the bytes of a source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SourceOrigin {
    /// A regular file, as it was when it was opened.
    File {
        /// The device number of its file system.
        device: u64,
        /// Its inode number.
        inode: u64,
        /// Its size in bytes.
        len: u64,
        /// When its content or its inode changed last, in seconds and nanoseconds.
        changed: (i64, i64),
    },
    /// Content of which every byte that is read is verified with this digest.
    Digest(String),
}
