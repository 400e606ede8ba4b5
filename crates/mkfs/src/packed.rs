//! The packed inode's content: the ends of many files, one behind the other.

use std::{collections::HashMap, fs::File, os::unix::fs::FileExt, path::Path, sync::Arc};

use crate::{
    content::Content,
    error::{Error, Result},
    image_file::scratch_file,
};

/// What is collected before it is written, in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// How much is compared at once, in bytes.
const COMPARE_LEN: usize = 64 << 10;

/// Collects fragments in a temporary file; equal ones are stored once.
pub(crate) struct Packed {
    file: Arc<File>,
    path: Arc<Path>,
    buffer: Vec<u8>,
    written: u64,
    /// Hash and length of each fragment, and where it is.
    known: HashMap<(u64, usize), u64>,
    duplicate_bytes: u64,
}

impl Packed {
    /// An empty one, beside the image at `path`.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let file = Arc::new(scratch_file(path)?);
        let (buffer, known) = (Vec::with_capacity(BUFFER_LEN), HashMap::new());
        Ok(Self { file, path: path.into(), buffer, written: 0, known, duplicate_bytes: 0 })
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// How many bytes were there already.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Adds a fragment whose hash is given; gives where it is.
    pub(crate) fn add(&mut self, fragment: &[u8], hash: u64) -> Result<u64> {
        let key = (hash, fragment.len());
        if let Some(&offset) = self.known.get(&key)
            && self.holds(offset, fragment)?
        {
            self.duplicate_bytes += fragment.len() as u64;
            return Ok(offset);
        }
        let offset = self.append(fragment)?;
        self.known.insert(key, offset);
        Ok(offset)
    }

    /// Adds bytes without a look at what is there; gives where they are.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let offset = self.len();
        if self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush()?;
        }
        if bytes.len() > BUFFER_LEN {
            self.file.write_all_at(bytes, self.written).map_err(self.failed("write"))?;
            self.written += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(offset)
    }

    /// All of it, as a file to be compressed.
    pub(crate) fn into_content(mut self) -> Result<Content> {
        self.flush()?;
        Ok(Content::Region { file: self.file, path: self.path, offset: 0, size: self.written, identity: None })
    }

    fn holds(&mut self, offset: u64, fragment: &[u8]) -> Result<bool> {
        if offset >= self.written {
            let start = usize::try_from(offset - self.written).unwrap_or(usize::MAX);
            return Ok(self.buffer.get(start..).is_some_and(|buffer| buffer.starts_with(fragment)));
        }
        let mut bytes = vec![0; COMPARE_LEN];
        for (part, start) in fragment.chunks(COMPARE_LEN).zip((offset..).step_by(COMPARE_LEN)) {
            let bytes = &mut bytes[..part.len()];
            self.file.read_exact_at(bytes, start).map_err(self.failed("read back"))?;
            if bytes != part {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all_at(&self.buffer, self.written).map_err(self.failed("write"))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.path.to_path_buf();
        move |error| Error::Output { path, action, error }
    }
}
