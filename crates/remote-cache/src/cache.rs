//! The cache directory.

use std::{
    env, fmt,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use bytes::Bytes;

use crate::{
    BootId, Digest, ObjectKey,
    about::{About, tempfile_in},
    budget::Budget,
    stored_object::StoredObject,
};

/// The version of the directory's content. Other versions use other subdirectories.
const VERSION: &str = "v1";

/// The maximum number of bytes that are remembered for a name.
const MEMORY_BYTES_MAX: u64 = 64 << 10;

/// The permissions of a directory's group and of others to write to it.
const OTHERS_WRITE: u32 = 0o022;

/// The pause after a failed write to the cache, in milliseconds.
const FAILURE_PAUSE_MS: u64 = 10_000;

/// The default size limit: a tenth of the file system, and at most 16 GiB.
const DEFAULT_SHARE: u64 = 10;
const DEFAULT_BYTES_MAX: u64 = 16 << 30;

/// Receives the few messages of the cache for users.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Options for opening a cache.
#[derive(Clone)]
pub struct CacheOptions {
    /// The directory, which is created if it is missing.
    pub directory: PathBuf,
    /// The size limit on disk, in bytes; `None` for a tenth of the file system, and at most 16 GiB.
    pub size_bytes_max: Option<u64>,
    /// The boot of the machine; [`BootId::current`] except in tests.
    pub boot: BootId,
    /// Receives messages for users, such as that the disk is full.
    pub notice: Notice,
}

impl CacheOptions {
    /// A cache in this directory, with default options.
    pub fn new(directory: impl Into<PathBuf>, notice: Notice) -> Self {
        Self { directory: directory.into(), size_bytes_max: None, boot: BootId::current(), notice }
    }

    /// The default directory: `/var/cache/floe` for root, `$XDG_CACHE_HOME/floe` or `~/.cache/floe` for others; `None`
    /// for users without a home directory.
    pub fn default_directory() -> Option<PathBuf> {
        if rustix::process::geteuid().is_root() {
            return Some("/var/cache/floe".into());
        }
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(caches.join("floe"))
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("CacheOptions");
        debug.field("directory", &self.directory).field("size_bytes_max", &self.size_bytes_max).finish_non_exhaustive()
    }
}

/// A cache on disk that any number of processes use at once.
///
/// ```text
/// v1/objects/ab/<id>/     about (description), data (sparse), map (present chunks), usage (for eviction)
/// v1/blobs/ab/<digest>    digest tables
/// v1/names/ab/<digest>    the last resolution of a name, such as a URL
/// v1/state                bytes in use, the hand of the clock; its first bytes are also locks
/// ```
pub struct Cache {
    root: PathBuf,
    boot: BootId,
    notice: Notice,
    budget: Budget,
    size_bytes_max: u64,
    opened: Instant,
    failing_until_ms: AtomicU64,
    has_told: AtomicBool,
}

impl Cache {
    /// Opens the cache.
    ///
    /// # Errors
    /// The directory cannot be created or written, others may write to it, or its file system does not support locks.
    pub fn open(options: CacheOptions) -> io::Result<Arc<Self>> {
        let CacheOptions { directory, size_bytes_max, boot, notice } = options;
        let root = directory.join(VERSION);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        match DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => check_owner(&root)?,
        }
        for folder in ["objects", "blobs", "names"] {
            DirBuilder::new().recursive(true).mode(0o700).create(root.join(folder))?;
        }
        // Leftovers of removals whose process was killed.
        let _ = fs::remove_dir_all(root.join("trash"));
        let size_bytes_max = match size_bytes_max {
            Some(bytes) => bytes,
            None => default_bytes(&root)?,
        };
        let budget = Budget::open(&root, size_bytes_max, boot)?;
        budget.check_locks()?;
        let failing_until_ms = AtomicU64::new(0);
        let has_told = AtomicBool::new(false);
        let opened = Instant::now();
        Ok(Arc::new(Self { root, boot, notice, budget, size_bytes_max, opened, failing_until_ms, has_told }))
    }

    /// The size limit on disk, in bytes.
    pub const fn size_bytes_max(&self) -> u64 {
        self.size_bytes_max
    }

    /// The number of chunks that this process has evicted.
    pub fn evicted_chunks(&self) -> u64 {
        self.budget.evicted_chunks.total()
    }

    /// The bytes with this digest, if they are in the cache, match the digest and are at most `bytes_max`.
    pub fn blob(&self, digest: &Digest, bytes_max: u64) -> Option<Bytes> {
        let path = self.path("blobs", digest);
        let bytes = read_at_most(&path, bytes_max)?;
        if Digest::of(&bytes) != *digest {
            let _ = fs::remove_file(path);
            return None;
        }
        Some(bytes.into())
    }

    /// Stores `bytes`, whose digest is `digest`. A failure is reported as a notice.
    pub fn keep_blob(&self, digest: &Digest, bytes: &[u8]) {
        self.keep(&self.path("blobs", digest), bytes);
    }

    /// The text that was last remembered for `name`.
    pub fn recall(&self, name: &str) -> Option<String> {
        let path = self.path("names", &Digest::of(name.as_bytes()));
        let text = String::from_utf8(read_at_most(&path, MEMORY_BYTES_MAX)?).ok()?;
        let (digest, memory) = text.split_once('\n')?;
        (digest.parse() == Ok(digest_of_memory(name, memory))).then(|| memory.to_owned())
    }

    /// Remembers the resolution of `name`, such as the digest and length for a URL, for use while it cannot be
    /// resolved.
    pub fn remember(&self, name: &str, memory: &str) {
        let text = format!("{}\n{memory}", digest_of_memory(name, memory));
        self.keep(&self.path("names", &Digest::of(name.as_bytes())), text.as_bytes());
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) const fn boot(&self) -> BootId {
        self.boot
    }

    pub(crate) const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Opens an object and protects it from removal. `name` is its name for users.
    pub(crate) fn object(&self, key: &ObjectKey, name: &str) -> io::Result<StoredObject> {
        let id = key.id();
        let about = About::of(key, name).ok_or(io::ErrorKind::InvalidInput)?;
        StoredObject::open(&self.path("objects", &id), &about, id, self.boot)
    }

    /// Whether chunks are being stored; after a failure they are not, for some seconds.
    pub(crate) fn is_storing(&self) -> bool {
        self.now_ms() >= self.failing_until_ms.load(Ordering::Relaxed)
    }

    /// Records a failure to store, and reports the first one to users.
    pub(crate) fn store_failed(&self, error: &io::Error) {
        self.failing_until_ms.store(self.now_ms() + FAILURE_PAUSE_MS, Ordering::Relaxed);
        if !self.has_told.swap(true, Ordering::Relaxed) {
            let root = self.root.display();
            (self.notice)(&format!(
                "cannot write to the cache {root}: {error}; continuing without the cache while this lasts"
            ));
        }
    }

    fn keep(&self, path: &Path, bytes: &[u8]) {
        if !self.is_storing() {
            return;
        }
        let kept = (|| {
            let folder = path.parent().unwrap_or(&self.root);
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            if !self.budget.reserve(bytes.len() as u64)? {
                return Ok(());
            }
            let written = tempfile_in(folder).and_then(|(new, mut file)| {
                let renamed = file.write_all(bytes).and_then(|()| fs::rename(&new, path));
                renamed.inspect_err(|_| drop(fs::remove_file(&new)))
            });
            let reserved = bytes.len() as u64;
            self.budget.settle(reserved, if written.is_ok() { 0 } else { reserved });
            written
        })();
        if let Err(error) = kept {
            self.store_failed(&error);
        }
    }

    fn path(&self, folder: &str, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(folder).join(&name[..2]).join(name)
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cache").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Checks that no other user can put files into a directory.
fn check_owner(directory: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    let problem = if !metadata.is_dir() {
        "it is not a directory"
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & OTHERS_WRITE != 0 {
        "others may write to it"
    } else {
        return Ok(());
    };
    let message = format!("{}: {problem}, so its content cannot be trusted", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Reads a file of at most `bytes_max` bytes, and marks it as used.
fn read_at_most(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok().filter(|metadata| metadata.is_file())?.len();
    if len > bytes_max {
        return None;
    }
    let mut bytes = Vec::new();
    (&file).take(len).read_to_end(&mut bytes).ok()?;
    let _ = file.set_modified(SystemTime::now());
    Some(bytes)
}

fn digest_of_memory(name: &str, memory: &str) -> Digest {
    Digest::of(format!("{name}\n{memory}").as_bytes())
}

fn default_bytes(root: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(root)?;
    Ok((stat.f_blocks.saturating_mul(stat.f_frsize) / DEFAULT_SHARE).min(DEFAULT_BYTES_MAX))
}
