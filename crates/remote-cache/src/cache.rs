//! The cache directory.

use std::{
    env, fmt, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use bytes::Bytes;
use floe_image::ShownName;

use crate::{
    BootId, Digest, ObjectKey, budget::Budget, key::About, stored_object::StoredObject,
    trusted_directory::TrustedDirectory,
};

/// The version of the directory's content. Each version has its own subdirectory.
const VERSION: &str = "v2";

/// The versions of earlier releases. Their content is removed.
const OLD_VERSIONS: [&str; 1] = ["v1"];

/// The maximum number of bytes that are remembered for a name.
const MEMORY_BYTES_MAX: u64 = 64 << 10;

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
/// v2/objects/ab/<id>/     about (description), data (sparse), map (present chunks), usage (for eviction)
/// v2/blobs/ab/<digest>    digest tables
/// v2/names/ab/<digest>    the last resolution of a name, such as a URL
/// v2/state                bytes in use, the hand of the clock; its first bytes are also locks
/// ```
pub struct Cache {
    root: Arc<TrustedDirectory>,
    boot: BootId,
    notice: Notice,
    budget: Budget,
    size_bytes_max: u64,
    opened: Instant,
    failing_until_ms: AtomicU64,
    has_reported: AtomicBool,
}

impl Cache {
    /// Opens the cache.
    ///
    /// # Errors
    /// The directory cannot be created or written, others may change its content ([`TrustedDirectory`]), or its file system
    /// does not support locks.
    pub fn open(options: CacheOptions) -> io::Result<Arc<Self>> {
        let CacheOptions { directory, size_bytes_max, boot, notice } = options;
        let root = Arc::new(TrustedDirectory::create(&directory, VERSION)?);
        remove_old_versions(&directory);
        for folder in ["objects", "blobs", "names"] {
            root.create_below(folder)?;
        }
        // Killed processes leave unfinished removals.
        let _ = root.remove_all("trash");
        let size_bytes_max = match size_bytes_max {
            Some(bytes) => bytes,
            None => default_bytes(&root)?,
        };
        let budget = Budget::open(Arc::clone(&root), size_bytes_max, boot)?;
        budget.check_locks()?;
        let failing_until_ms = AtomicU64::new(0);
        let has_reported = AtomicBool::new(false);
        let opened = Instant::now();
        Ok(Arc::new(Self { root, boot, notice, budget, size_bytes_max, opened, failing_until_ms, has_reported }))
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
        let bytes = self.read_at_most("blobs", digest, bytes_max)?;
        if Digest::of(&bytes) != *digest {
            let name = digest.to_string();
            let _ = self.folder("blobs", &name).and_then(|folder| folder.remove_file(&name));
            return None;
        }
        Some(bytes.into())
    }

    /// Stores `bytes`, whose digest is `digest`. A failure is reported as a notice.
    pub fn keep_blob(&self, digest: &Digest, bytes: &[u8]) {
        self.keep("blobs", digest, bytes);
    }

    /// The text that was last remembered for `name`.
    pub fn recall(&self, name: &str) -> Option<String> {
        let bytes = self.read_at_most("names", &Digest::of(name.as_bytes()), MEMORY_BYTES_MAX)?;
        let text = String::from_utf8(bytes).ok()?;
        let (digest, memory) = text.split_once('\n')?;
        (digest.parse() == Ok(digest_of_memory(name, memory))).then(|| memory.to_owned())
    }

    /// Remembers the resolution of `name`, such as the digest and length for a URL, for use while it cannot be
    /// resolved.
    pub fn remember(&self, name: &str, memory: &str) {
        let text = format!("{}\n{memory}", digest_of_memory(name, memory));
        self.keep("names", &Digest::of(name.as_bytes()), text.as_bytes());
    }

    pub(crate) fn root(&self) -> &TrustedDirectory {
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
        StoredObject::open(&self.root, &about, id, self.boot)
    }

    /// Whether chunks are being stored; after a failure they are not, for some seconds.
    pub(crate) fn is_storing(&self) -> bool {
        self.now_ms() >= self.failing_until_ms.load(Ordering::Relaxed)
    }

    /// Records a failure to store, and reports the first one to users.
    pub(crate) fn store_failed(&self, error: &io::Error) {
        self.failing_until_ms.store(self.now_ms() + FAILURE_PAUSE_MS, Ordering::Relaxed);
        if !self.has_reported.swap(true, Ordering::Relaxed) {
            let root = self.root.path().shown();
            (self.notice)(&format!(
                "cannot write to the cache {root}: {error}; continuing without the cache while this lasts"
            ));
        }
    }

    fn keep(&self, kind: &str, digest: &Digest, bytes: &[u8]) {
        if !self.is_storing() {
            return;
        }
        let kept = (|| {
            let name = digest.to_string();
            let folder = self.root.create_below(kind)?.create_below(&name[..2])?;
            if !self.budget.reserve(bytes.len() as u64)? {
                return Ok(());
            }
            let written = folder.new_file().and_then(|(new, mut file)| {
                let renamed = file.write_all(bytes).and_then(|()| folder.rename(&new, &folder, &name));
                renamed.inspect_err(|_| drop(folder.remove_file(&new)))
            });
            let reserved = bytes.len() as u64;
            self.budget.settle(reserved, if written.is_ok() { 0 } else { reserved });
            written
        })();
        if let Err(error) = kept {
            self.store_failed(&error);
        }
    }

    /// Reads a file of at most `bytes_max` bytes, and marks it as used.
    fn read_at_most(&self, kind: &str, digest: &Digest, bytes_max: u64) -> Option<Vec<u8>> {
        let name = digest.to_string();
        let file = self.folder(kind, &name).ok()?.read_file(&name).ok()?;
        let len = file.metadata().ok()?.len();
        if len > bytes_max {
            return None;
        }
        let mut bytes = Vec::new();
        (&file).take(len).read_to_end(&mut bytes).ok()?;
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    fn folder(&self, kind: &str, name: &str) -> io::Result<TrustedDirectory> {
        self.root.open_below(kind)?.open_below(&name[..2])
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cache").field("root", &self.root.path()).finish_non_exhaustive()
    }
}

/// Removes the content of earlier versions, of which mounts of earlier releases keep what they have open.
fn remove_old_versions(directory: &Path) {
    for version in OLD_VERSIONS {
        let Ok(old) = TrustedDirectory::open(directory, version) else { continue };
        old.names().iter().filter_map(|name| name.to_str()).for_each(|name| drop(old.remove_all(name)));
        let _ = fs::remove_dir(directory.join(version));
    }
}

fn digest_of_memory(name: &str, memory: &str) -> Digest {
    Digest::of(format!("{name}\n{memory}").as_bytes())
}

fn default_bytes(root: &TrustedDirectory) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(root)?;
    Ok((stat.f_blocks.saturating_mul(stat.f_frsize) / DEFAULT_SHARE).min(DEFAULT_BYTES_MAX))
}
