//! Downloads whole images into files.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use floe_image::ByteRange;
use floe_remote_cache::{Cause, RangeFetcher, Trust};
use floe_sync::Mutex;

use crate::{Network, RemoteLocation, RemoteObject, file_digests::FileDigests, registry::Layer};

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
        let wrong = |problem: &str| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{location}: {problem}; nothing was stored"))
        };
        let table = match &object.key().trust {
            Trust::Table(table) => Some(table.digest()),
            Trust::Verity(_) | Trust::Tree(_) | Trust::Location(_) => None,
        };
        let is_verified = table.is_some() || layer.is_some();
        if is_verified {
            let found = FileDigests::of(file)?;
            if table.is_some_and(|table| table != found.table.digest()) {
                return Err(wrong("the bytes do not match the digest table"));
            }
            if let Some(layer) = layer.as_ref().filter(|layer| layer.digest != found.whole) {
                return Err(wrong(&format!("sha256:{} came instead of sha256:{}", found.whole, layer.digest)));
            }
        }
        let compression = layer.as_ref().and_then(Layer::compression);
        Ok(Pulled { name: object.name(), len: object.blob_len(), is_verified, compression })
    }
}

fn fetch_all(object: &RemoteObject, file: &File, progress: &(dyn Fn(u64, u64) + Sync)) -> io::Result<()> {
    let len = object.blob_len();
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
                failure.lock().get_or_insert(error);
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
    failure.into_inner().map_or(Ok(()), Err)
}
