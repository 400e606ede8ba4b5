//! Downloads whole images into files.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use floe_image::ByteRange;
use floe_remote_cache::{Cause, Digest, RangeFetcher, Trust};
use sha2::{Digest as _, Sha256};

use crate::{Network, RemoteLocation, RemoteObject};

/// The size of a request in bytes, and the number of requests in flight.
const PIECE_BYTES: u64 = 4 << 20;
const REQUEST_COUNT: usize = 4;

/// The result of a download.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// The source; in registries with digests.
    pub name: String,
    /// The number of bytes.
    pub len: u64,
    /// Whether each byte was verified against a digest.
    pub is_verified: bool,
    /// The compression of the image as a whole, if any: `zstd` or `gzip`.
    pub compression: Option<&'static str>,
}

impl Network {
    /// Downloads the object at `location` into the empty file `file`, and verifies it against the digest of the blob or
    /// the digest table. `progress` receives the numbers of downloaded and of all bytes.
    ///
    /// # Errors
    /// The object cannot be fetched, its bytes are wrong, or the file cannot be written.
    pub fn pull(
        &self,
        location: &RemoteLocation,
        file: &File,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> io::Result<Pulled> {
        let (object, layer) = RemoteObject::open(self.shared(), location)?;
        fetch_all(&object, file, progress)?;
        let mut is_verified = false;
        let wrong = |problem: &str| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{location}: {problem}; nothing was stored"))
        };
        if let Trust::Table(table) = &object.key().trust {
            let found = floe_remote_cache::DigestTable::of(&mut Sequential { file, offset: 0 })?;
            if found.digest() != table.digest() {
                return Err(wrong("the bytes do not match the digest table"));
            }
            is_verified = true;
        }
        if let Some(layer) = &layer {
            let found = digest_of(file)?;
            if found != layer.digest {
                return Err(wrong(&format!("sha256:{found} came instead of sha256:{}", layer.digest)));
            }
            is_verified = true;
        }
        let compression = layer.as_ref().and_then(|layer| {
            let is = |suffix: &str| layer.media_type.ends_with(suffix);
            if is("+zstd") { Some("zstd") } else { (is("+gzip") || is(".gzip")).then_some("gzip") }
        });
        Ok(Pulled { name: object.name(), len: RangeFetcher::len(&object), is_verified, compression })
    }
}

fn fetch_all(object: &RemoteObject, file: &File, progress: &(dyn Fn(u64, u64) + Sync)) -> io::Result<()> {
    let len = RangeFetcher::len(object);
    file.set_len(len)?;
    let (next, done, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failure = Mutex::new(None);
    let work = || {
        while !is_over.load(Relaxed) {
            let offset = next.fetch_add(PIECE_BYTES, Relaxed);
            if offset >= len {
                return;
            }
            let range = ByteRange::new(offset, PIECE_BYTES.min(len - offset));
            let fetched = object.fetch(range, Cause::Demand);
            if let Err(error) = fetched.and_then(|bytes| file.write_all_at(&bytes, offset)) {
                is_over.store(true, Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            progress(done.fetch_add(range.len(), Relaxed) + range.len(), len);
        }
    };
    thread::scope(|scope| {
        for _ in 0..REQUEST_COUNT {
            scope.spawn(work);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Reads a file from its start, independent of its position.
struct Sequential<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for Sequential<'_> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(output, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}

fn digest_of(file: &File) -> io::Result<Digest> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    let mut reader = Sequential { file, offset: 0 };
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(Digest(hash.finalize().into())),
            len => hash.update(&buffer[..len]),
        }
    }
}
