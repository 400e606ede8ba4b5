//! A remote object as the source of an image.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use floe_image::{ByteRange, ImageSource};

use crate::{
    AheadReason, Cache, CacheCounts, Cause, DigestTable, FetchError, FetchFault, OBJECT_BYTES_MAX, ObjectKey,
    RangeFetcher, Trust, VerityRoot,
    ahead_chunks::AheadChunks,
    cached_object::{CachedObject, Reach, RecentChunks},
    counters::Counters,
    flights::Flights,
    prefetch::Prefetch,
    verifier::Verifier,
    verity::{Attempt, Geometry, TreeBlocks, VerifyError, VerityTree},
};

/// The number of bytes of a hash tree that are fetched when an object is opened: its upper levels, or all of it for images of
/// up to 30 MiB.
const TREE_START_BYTES: u64 = 256 << 10;

/// The number of bytes of a hash tree that are read for its superblock.
const SUPERBLOCK_BYTES: u64 = 512;

/// Options for opening an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceOptions {
    /// Whether an object without verification is refused.
    pub require_verified: bool,
    /// How long a read waits for another process that fetches the same chunk, before it fetches the chunk itself.
    pub flight_patience: Duration,
    /// Whether chunks are fetched ahead of sequential readers.
    pub reads_ahead: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self { require_verified: false, flight_patience: Duration::from_secs(15), reads_ahead: true }
    }
}

/// A remote object as the source of an image: cached bytes come from the cache, all others from a [`RangeFetcher`]. A
/// reader gets only bytes that were verified against the root of the object's [`Trust`].
///
/// Clones share everything.
#[derive(Clone)]
pub struct CachedSource {
    object: Arc<CachedObject>,
    prefetch: Arc<Prefetch>,
}

impl CachedSource {
    /// Opens an object. Without a cache, each read fetches. If the whole object is in the cache, the fetcher is never
    /// called.
    ///
    /// # Errors
    /// The object is unverified but verification is required, the fetcher reports another length, or the hash tree
    /// cannot be read or is invalid.
    pub fn open(
        cache: Option<&Arc<Cache>>,
        key: ObjectKey,
        fetcher: Arc<dyn RangeFetcher>,
        options: SourceOptions,
    ) -> io::Result<Self> {
        let name = fetcher.name();
        if options.require_verified && !key.is_verified() {
            let message = format!("{name}: its bytes cannot be verified, but verification is required");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        if key.len > OBJECT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{name}: it is longer than 4 TiB")));
        }
        let (source, root_len) = match &key.trust {
            Trust::Tree(root) => ("the hash tree", root.object_len()),
            Trust::Table(root) => ("the digest table", root.known().map_or(key.len, DigestTable::object_len)),
            Trust::Verity(_) | Trust::Location(_) => ("the key", key.len),
        };
        for (source, len) in [(source, root_len), ("the server", fetcher.len())] {
            if len != key.len {
                let message = format!("{name}: it has {len} bytes according to {source}, not {}", key.len);
                return Err(FetchError::new(FetchFault::WrongBytes, message).into());
            }
        }
        let stored = cache.and_then(|cache| {
            let stored = cache.object(&key, &name);
            stored.inspect_err(|error| cache.store_failed(error)).ok()
        });
        let object = Arc::new(CachedObject {
            layout: key.layout(),
            ahead: AheadChunks::new(key.layout()),
            key,
            fetcher,
            cache: cache.cloned(),
            stored,
            flights: Arc::new(Flights::default()),
            recent: RecentChunks::default(),
            counters: Counters::default(),
            verifier: OnceLock::new(),
            flight_patience: options.flight_patience,
        });
        let verifier = match &object.key.trust {
            Trust::Verity(root) => Verifier::Verity(Box::new(open_tree(&object, root)?)),
            Trust::Tree(root) => Verifier::Verity(Box::new(VerityTree::beside(root))),
            Trust::Table(root) => Verifier::Table(root.clone()),
            Trust::Location(_) => Verifier::FirstSeen,
        };
        let _ = object.verifier.set(verifier);
        let prefetch = Arc::new(Prefetch::new(Arc::clone(&object), options.reads_ahead));
        Ok(Self { object, prefetch })
    }

    /// The object's root of trust and its length.
    pub fn key(&self) -> &ObjectKey {
        &self.object.key
    }

    /// The counters so far.
    pub fn counts(&self) -> CacheCounts {
        let evicted_chunks = self.object.cache.as_ref().map_or(0, |cache| cache.evicted_chunks());
        self.object.counters.counts(evicted_chunks, self.object.ahead.counts())
    }

    /// Pauses prefetch, because other bytes are more urgent: while it is held, hints and sequential readers cause no fetches.
    pub fn hold_prefetch(&self, is_held: bool) {
        self.prefetch.hold(is_held);
    }

    /// Pins the chunks of these ranges, so that they are evicted last. Used for launch profiles.
    pub fn pin(&self, ranges: &[ByteRange]) {
        let Some(stored) = &self.object.stored else { return };
        let data = ByteRange::new(0, self.len());
        for range in ranges.iter().map(|range| range.intersection(data)).filter(|range| !range.is_empty()) {
            let layout = self.object.layout;
            let [first, last] = [range.offset(), range.end() - 1].map(|byte| layout.section_of(layout.index_of(byte)));
            (first..=last).for_each(|section| stored.pin(section));
        }
    }

    /// Whether the cache has every byte that a reader may read, so that no network is needed.
    pub fn is_whole(&self) -> bool {
        self.has(ByteRange::new(0, self.len()))
    }

    /// Whether the cache has all bytes of a range. Parts beyond the end count as present.
    pub fn has(&self, range: ByteRange) -> bool {
        let range = range.intersection(ByteRange::new(0, self.len()));
        range.is_empty() || self.object.has(self.object.chunks_of(range))
    }

    fn range(&self, offset: u64, len: usize) -> io::Result<ByteRange> {
        let range = ByteRange::new(offset, len as u64);
        let is_inside = range.len() == len as u64 && range.end() <= self.len();
        is_inside.then_some(range).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl ImageSource for CachedSource {
    fn len(&self) -> u64 {
        self.object.layout.data_len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, output.len())?;
        self.prefetch.note_read(range);
        self.object.read(range, output, Cause::Demand, &|wanted| self.prefetch.reach(wanted))
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        let range = self.range(offset, output.len())?;
        let is_read = self.object.try_read_at(range, output);
        if is_read {
            self.prefetch.note_read(range);
        }
        Ok(is_read)
    }

    fn reads_around(&self) -> bool {
        true
    }

    /// Fetches missing chunks in the background. Does nothing if they cannot be stored.
    fn will_need(&self, offset: u64, len: u64) {
        self.prefetch.add(ByteRange::new(offset, len), AheadReason::Hint);
    }
}

impl fmt::Debug for CachedSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CachedSource({}, {})", self.object.fetcher.name(), self.object.key)
    }
}

/// Reads the superblock of a hash tree. If it is invalid, or the tree's root does not fit it, tries another mirror once: no hash
/// covers the superblock, and with another salt no block would ever be right.
fn open_tree(object: &CachedObject, root: &VerityRoot) -> io::Result<VerityTree> {
    let wrong = |rule: &dyn fmt::Display| {
        let message = format!("{}, byte {}: {rule} ({})", object.fetcher.name(), root.hash_offset, object.key);
        io::Error::from(FetchError::new(FetchFault::WrongBytes, message))
    };
    let tree = ByteRange::between(root.hash_offset, object.key.len);
    if tree.len() < SUPERBLOCK_BYTES {
        return Err(wrong(&"the object ends before its dm-verity tree"));
    }
    let mut start = vec![0; usize::try_from(tree.len().min(TREE_START_BYTES)).unwrap_or(0)];
    object.read(ByteRange::new(tree.offset(), start.len() as u64), &mut start, Cause::Tree, &Reach::only)?;
    let tree_in = |bytes: &[u8]| {
        let geometry = Geometry::of_object(bytes, root, object.key.len).map_err(|error| wrong(&error))?;
        let tree = VerityTree::new(geometry, root.root_hash);
        match tree.verify_root(object) {
            Ok(()) => Ok(tree),
            Err(VerifyError::Wrong { rule, .. }) => Err(wrong(&rule)),
            Err(VerifyError::Io(error)) => Err(error),
        }
    };
    match tree_in(&start) {
        Err(error) if FetchError::fault_of(&error) == FetchFault::WrongBytes => {
            object.counters.verification_failures.add(1);
            tree_in(&object.tree_block(ByteRange::new(tree.offset(), SUPERBLOCK_BYTES), Attempt::Again)?)
        }
        tree => tree,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BootId, CacheOptions, DigestTable, Location};

    /// A server without faults; without bytes, it is out of reach.
    struct Memory {
        bytes: Option<Vec<u8>>,
        len: u64,
    }

    impl RangeFetcher for Memory {
        fn len(&self) -> u64 {
            self.len
        }

        fn name(&self) -> String {
            "memory".to_owned()
        }

        fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<bytes::Bytes> {
            let bytes = self.bytes.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            Ok(bytes[range.offset() as usize..range.end() as usize].to_vec().into())
        }
    }

    #[test]
    fn chunks_of_an_earlier_boot_are_verified_against_the_root() {
        let image = floe_testkit::Random::new(1).noise(300_000);
        let table = Trust::Table(DigestTable::of(&mut &*image).expect("a table").into());
        let location = Trust::Location(Location { url: "memory".to_owned(), etag: "1".to_owned() });
        for trust in [table, location] {
            let key = ObjectKey { trust, len: image.len() as u64 };
            let right = &image[..key.chunk_bytes() as usize];
            let digest = (!key.is_verified()).then(|| crate::Digest::of(right));
            let mut wrong = right.to_vec();
            wrong[7] ^= 1;
            for (chunk, is_right) in [(&wrong[..], false), (right, true)] {
                let folder = tempfile::tempdir().expect("a folder");
                let cache = |boot| {
                    let mut options = CacheOptions::new(folder.path(), Arc::new(|_: &str| {}));
                    (options.boot, options.size_bytes_max) = (BootId::of(boot), Some(1 << 30));
                    Cache::open(options).expect("it opens")
                };
                // The checksum in the entry matches the chunk, so only the root reveals the wrong bytes.
                let stored = cache("first").object(&key, "memory").expect("an object");
                let lock = stored.try_lock(0..1).expect("locks work");
                stored.store(0, chunk, &[digest]).expect("stored");
                drop((lock, stored));
                let mut output = [0; 100];
                let open = |bytes| {
                    let server = Arc::new(Memory { bytes, len: key.len });
                    CachedSource::open(Some(&cache("second")), key.clone(), server, SourceOptions::default())
                };
                let offline = open(None).expect("it opens");
                assert_eq!(offline.read_at(0, &mut output).is_ok(), is_right, "{key}");
                let online = open(Some(image.clone())).expect("it opens");
                online.read_at(0, &mut output).expect("it is read");
                assert_eq!(output, image[..100], "{key}");
            }
        }
    }
}
