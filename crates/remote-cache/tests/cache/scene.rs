//! An object, its kinds of verification, and its server.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    BootId, Cache, CacheOptions, CachedSource, Cause, Digest, DigestTable, FetchError, FetchFault, HashTreeBuilder,
    Location, ObjectKey, RangeFetcher, SourceOptions, TreeRoot, Trust, VerityOptions, append_verity,
};
use floe_testkit::Random;
use tempfile::TempDir;

/// The kind of verification of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Verity,
    SmallVerity,
    Tree,
    Table,
    Location,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Verity, Self::SmallVerity, Self::Tree, Self::Table, Self::Location];
}

/// An object and its key.
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) key: ObjectKey,
}

impl Object {
    /// An object with random bytes of this length, and a hash tree if the kind has one.
    pub(crate) fn new(kind: Kind, image_len: usize, seed: u64) -> Self {
        let mut bytes = Random::new(seed).noise(image_len);
        let trust = match kind {
            Kind::Verity | Kind::SmallVerity => {
                let mut file = tempfile::tempfile().expect("a file");
                file.write_all(&bytes).expect("written");
                let block_bytes = if kind == Kind::Verity { 4096 } else { 512 };
                let options = VerityOptions { block_bytes, ..VerityOptions::default() };
                let root = append_verity(&file, &options).expect("a tree");
                bytes = vec![0; file.metadata().expect("a length").len() as usize];
                file.read_exact_at(&mut bytes, 0).expect("read");
                Trust::Verity(root)
            }
            Kind::Tree => {
                let mut builder = HashTreeBuilder::default();
                builder.update(&bytes);
                match builder.finish() {
                    Some(tree) => {
                        bytes.extend_from_slice(tree.bytes());
                        Trust::Tree(tree.root())
                    }
                    None => Trust::Tree(TreeRoot { root_hash: Digest::of(&bytes), data_len: image_len as u64 }),
                }
            }
            Kind::Table => Trust::Table(DigestTable::of(&mut &*bytes).expect("a table").into()),
            Kind::Location => {
                let url = format!("https://example.org/{seed}");
                Trust::Location(Location { url, etag: "\"1\"".to_owned() })
            }
        };
        let key = ObjectKey { trust, len: bytes.len() as u64 };
        Self { bytes: bytes.into(), key }
    }

    /// The bytes that a reader may read.
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[..self.key.data_len() as usize]
    }

    pub(crate) fn data_chunks(&self) -> u64 {
        self.key.data_len().div_ceil(self.key.chunk_bytes())
    }
}

/// Modifies the bytes of a server's answer.
pub(crate) type Lie = Arc<dyn Fn(ByteRange, Bytes) -> io::Result<Bytes> + Send + Sync>;

/// Serves an object from memory.
pub(crate) struct Server {
    pub(crate) bytes: Bytes,
    pub(crate) is_down: AtomicBool,
    pub(crate) lie: Mutex<Option<Lie>>,
    pub(crate) fetched: Mutex<Vec<(ByteRange, Cause)>>,
    pub(crate) elsewhere: Mutex<Vec<ByteRange>>,
}

impl Server {
    pub(crate) fn of(object: &Object) -> Arc<Self> {
        Arc::new(Self {
            bytes: object.bytes.clone(),
            is_down: AtomicBool::new(false),
            lie: Mutex::new(None),
            fetched: Mutex::default(),
            elsewhere: Mutex::default(),
        })
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    pub(crate) fn set_lie(&self, lie: Option<Lie>) {
        *self.lie.lock().expect("no panic") = lie;
    }

    /// The number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.fetched.lock().expect("no panic").len()
    }

    /// The number of fetched bytes, except those of the hash tree.
    pub(crate) fn data_bytes(&self) -> u64 {
        let fetched = self.fetched.lock().expect("no panic");
        fetched.iter().filter(|(_, cause)| *cause != Cause::Tree).map(|(range, _)| range.len()).sum()
    }
}

impl RangeFetcher for Server {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn name(&self) -> String {
        "https://example.org/image".to_owned()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(FetchError::new(FetchFault::Outage, "the server is down").into());
        }
        self.fetched.lock().expect("no panic").push((range, cause));
        let bytes = self.bytes.slice(range.offset() as usize..range.end() as usize);
        let lie = self.lie.lock().expect("no panic").clone();
        match lie {
            Some(lie) => lie(range, bytes),
            None => Ok(bytes),
        }
    }

    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.elsewhere.lock().expect("no panic").push(range);
        self.fetch(range, cause)
    }
}

/// A cache directory, and the notices of the cache.
pub(crate) struct Scene {
    pub(crate) directory: TempDir,
    pub(crate) notices: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), notices: Arc::default() }
    }

    pub(crate) fn cache(&self) -> Arc<Cache> {
        self.cache_of(1 << 30, "first boot")
    }

    pub(crate) fn cache_of(&self, size_bytes_max: u64, boot: &str) -> Arc<Cache> {
        cache_in(self.directory.path(), size_bytes_max, boot, &self.notices)
    }

    /// The directory of an object.
    pub(crate) fn object_directory(&self, key: &ObjectKey) -> PathBuf {
        let id = key.id().to_string();
        self.directory.path().join("v2/objects").join(&id[..2]).join(id)
    }
}

pub(crate) fn cache_in(
    directory: &Path,
    size_bytes_max: u64,
    boot: &str,
    notices: &Arc<Mutex<Vec<String>>>,
) -> Arc<Cache> {
    let notices = Arc::clone(notices);
    let notice = Arc::new(move |text: &str| notices.lock().expect("no panic").push(text.to_owned()));
    let mut options = CacheOptions::new(directory, notice);
    options.size_bytes_max = Some(size_bytes_max);
    options.boot = BootId::of(boot);
    Cache::open(options).expect("the cache opens")
}

/// Opens an object without fetching ahead.
pub(crate) fn open(cache: &Arc<Cache>, object: &Object, server: &Arc<Server>) -> io::Result<CachedSource> {
    open_with(cache, object, server, SourceOptions { reads_ahead: false, ..SourceOptions::default() })
}

pub(crate) fn open_with(
    cache: &Arc<Cache>,
    object: &Object,
    server: &Arc<Server>,
    options: SourceOptions,
) -> io::Result<CachedSource> {
    CachedSource::open(Some(cache), object.key.clone(), Arc::clone(server) as Arc<dyn RangeFetcher>, options)
}

/// All bytes of a source, read in pieces of odd sizes.
pub(crate) fn read_all(source: &CachedSource) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; source.len() as usize];
    let mut offset = 0;
    for piece in bytes.chunks_mut(100_003) {
        source.read_at(offset, piece)?;
        offset += piece.len() as u64;
    }
    Ok(bytes)
}

/// Reads random parts; each is correct, or an error.
pub(crate) fn read_parts(
    source: &CachedSource,
    data: &[u8],
    random: &mut Random,
    count: usize,
) -> (usize, Vec<io::Error>) {
    let mut errors = Vec::new();
    let mut right = 0;
    for _ in 0..count {
        let start = random.below(data.len() as u64) as usize;
        let len = (1 + random.below(70_000) as usize).min(data.len() - start);
        let mut output = vec![0xEE; len];
        match source.read_at(start as u64, &mut output) {
            Ok(()) => {
                let wrong = output.iter().zip(&data[start..]).position(|(read, right)| read != right);
                let first =
                    wrong.map(|at| (at, output[at], output[at..].iter().filter(|byte| **byte == output[at]).count()));
                assert!(first.is_none(), "wrong bytes at {start}, {len} of them: {first:?}");
                right += 1;
            }
            Err(error) => errors.push(error),
        }
    }
    (right, errors)
}

/// How often each data chunk was fetched, computed from the fetched ranges.
pub(crate) fn fetches_by_chunk(ranges: impl IntoIterator<Item = ByteRange>, key: &ObjectKey) -> HashMap<u64, usize> {
    let (data_len, chunk_bytes) = (key.data_len(), key.chunk_bytes());
    let mut counts = HashMap::new();
    for range in ranges.into_iter().filter(|range| range.offset() < data_len) {
        for chunk in range.offset() / chunk_bytes..range.end().min(data_len).div_ceil(chunk_bytes) {
            *counts.entry(chunk).or_insert(0) += 1;
        }
    }
    counts
}

/// The content of a file.
pub(crate) fn bytes_of(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("it is read");
    bytes
}

/// The value of a numeric environment variable, or `usual` if it is not set.
pub(crate) fn number_from(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
