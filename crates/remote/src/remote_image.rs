//! A remote image, ready to be read.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    Cache, CacheCounts, CacheOptions, CachedSource, Cause, DigestTable, FetchError, FetchFault, RangeFetcher,
    SourceOptions, TableRoot, Trust,
};
use serde::{Deserialize, Serialize};

use crate::{Network, RemoteCounts, RemoteLocation, RemoteObject, RemoteOptions, resolution::Resolution};

/// How a remote image is opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageOptions {
    /// How it is fetched.
    pub remote: RemoteOptions,
    /// Whether an image is refused whose bytes cannot be verified.
    pub require_verified: bool,
    /// The directory of the cache; `None`: the user's.
    pub cache_directory: Option<PathBuf>,
    /// The most bytes that the cache may take; 0: there is none; `None`: a share of the file system.
    pub cache_bytes_max: Option<u64>,
}

/// What is known of a remote image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageAbout {
    /// Its URL, without credentials; in registries with digests.
    pub name: String,
    /// How many bytes it has.
    pub len: u64,
    /// What its bytes are verified against; `None`: they are not.
    pub verified_by: Option<String>,
    /// Whether the server was out of reach, so that what it was last time is read.
    pub is_recalled: bool,
}

/// What was fetched for a remote image, and what the cache held.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageCounts {
    /// Requests to the server.
    pub remote: RemoteCounts,
    /// Reads that the cache answered, and those that it did not.
    pub cache_hits: u64,
    /// See `cache_hits`.
    pub cache_misses: u64,
    /// Reads that waited for a fetch of another thread or process.
    pub cache_joined: u64,
    /// Fetched chunks that did not verify.
    pub verification_failures: u64,
    /// Chunks that were served without being stored.
    pub uncached_chunks: u64,
}

/// A remote image, ready to be read.
pub struct RemoteImage {
    about: ImageAbout,
    network: Network,
    fetcher: Arc<Fetcher>,
    source: CachedSource,
}

/// The object; where the server was out of reach at the start, it is looked for at the first fetch.
struct Fetcher {
    name: String,
    len: u64,
    location: RemoteLocation,
    /// What the object must still be.
    id: floe_remote_cache::Digest,
    network: Network,
    object: RwLock<Option<Arc<RemoteObject>>>,
}

impl RemoteImage {
    /// Opens the image at `location`, a URL. `notice` takes messages for people.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where `location` is none; the image is not there, or not verified as it should be.
    pub fn open(location: &str, options: &ImageOptions, notice: fn(&str)) -> io::Result<Self> {
        let location: RemoteLocation =
            location.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let network = Network::new(options.remote.clone())?;
        let cache = open_cache(options, notice);
        let remembered_as = location.to_string();
        let (mut key, name, object) = match network.open(&location) {
            Ok(object) => {
                if let Some(cache) = &cache {
                    Resolution::of(&object).remember(cache, &remembered_as);
                }
                (object.key().clone(), object.name(), Some(Arc::new(object)))
            }
            Err(error) => {
                let is_outage = FetchError::inside(&error).is_some_and(|error| error.fault() == FetchFault::Outage);
                let recalled = cache.as_ref().filter(|_| is_outage);
                let recalled = recalled.and_then(|cache| Resolution::recall(cache, &remembered_as));
                let Some((key, name)) = recalled else { return Err(error) };
                notice(&format!("{error}; going on with what is in the cache"));
                (key, name, None)
            }
        };
        // Chunks of an object that nothing tells from its successor must not be kept for it.
        let may_be_kept = !matches!(&key.trust, Trust::Location(place) if place.etag.is_empty());
        let cache = cache.filter(|_| may_be_kept);
        if let (Trust::Table(root), Some(cache)) = (&mut key.trust, &cache) {
            *root = kept_table(root.clone(), key.len, Arc::clone(cache));
        }
        let about = ImageAbout {
            name: name.clone(),
            len: key.data_len(),
            verified_by: match &key.trust {
                Trust::Verity(root) => Some(format!("dm-verity sha256:{}", root.root_hash)),
                Trust::Table(table) => Some(format!("table sha256:{}", table.digest())),
                Trust::Location(_) => None,
            },
            is_recalled: object.is_none(),
        };
        let fetcher = Fetcher {
            name,
            len: key.len,
            location,
            id: key.id(),
            network: network.clone(),
            object: RwLock::new(object),
        };
        let fetcher = Arc::new(fetcher);
        let source_options = SourceOptions { require_verified: options.require_verified, ..SourceOptions::default() };
        let fetched: Arc<dyn RangeFetcher> = Arc::clone(&fetcher) as Arc<dyn RangeFetcher>;
        let source = CachedSource::open(cache.as_ref(), key, fetched, source_options)?;
        if let Some(object) = fetcher.known() {
            source.pin(object.launch());
            object.launch().iter().for_each(|run| source.will_need(run.offset(), run.len()));
        }
        Ok(Self { about, network, fetcher, source })
    }

    /// What is known of it.
    pub fn about(&self) -> &ImageAbout {
        &self.about
    }

    /// What was fetched so far.
    pub fn counts(&self) -> ImageCounts {
        let CacheCounts { hits, misses, joined, verification_failures, uncached_chunks, .. } = self.source.counts();
        ImageCounts {
            remote: self.fetcher.known().map(|object| object.counts()).unwrap_or_default(),
            cache_hits: hits,
            cache_misses: misses,
            cache_joined: joined,
            verification_failures,
            uncached_chunks,
        }
    }

    /// Ends all reads that wait, and all later ones, with an error.
    pub fn close(&self) {
        self.network.close();
    }
}

impl Drop for RemoteImage {
    fn drop(&mut self) {
        // What is prefetched would be waited for.
        self.close();
    }
}

impl ImageSource for RemoteImage {
    fn len(&self) -> u64 {
        self.about.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.source.read_at(offset, output)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.source.try_read_at(offset, output)
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.source.will_need(offset, len);
    }

    fn dont_need(&self, offset: u64, len: u64) {
        self.source.dont_need(offset, len);
    }
}

impl Fetcher {
    fn known(&self) -> Option<Arc<RemoteObject>> {
        self.object.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The object; looked for where that has not been possible yet.
    fn object(&self) -> io::Result<Arc<RemoteObject>> {
        if let Some(object) = self.known() {
            return Ok(object);
        }
        let object = Arc::new(self.network.open(&self.location)?);
        if object.key().id() != self.id {
            let message = format!("{}: another object is there by now; mount it anew", self.name);
            return Err(FetchError::new(FetchFault::Gone, message).into());
        }
        *self.object.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&object));
        Ok(object)
    }
}

impl RangeFetcher for Fetcher {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.object()?.fetch(range, cause)
    }

    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.object()?.fetch_elsewhere(range, cause)
    }

    fn request_bytes(&self, cause: Cause) -> u64 {
        self.known().map_or(1 << 18, |object| object.request_bytes(cause))
    }

    fn hurry(&self, range: ByteRange) {
        if let Some(object) = self.known() {
            object.hurry(range);
        }
    }

    fn connections(&self) -> usize {
        self.known().map_or(1, |object| object.connections())
    }
}

/// A table that comes from the cache, or else goes there.
fn kept_table(root: TableRoot, object_len: u64, cache: Arc<Cache>) -> TableRoot {
    let digest = *root.digest();
    TableRoot::new(digest, move || {
        let kept = cache.blob(&digest, DigestTable::bytes_for(object_len));
        if let Some(table) = kept.and_then(|bytes| DigestTable::parse(&bytes, &digest).ok()) {
            return Ok(table);
        }
        let table = root.table()?;
        cache.keep_blob(&digest, &table.to_bytes());
        Ok(table.clone())
    })
}

/// The cache that the options ask for. What keeps it from being used is told, and no error.
fn open_cache(options: &ImageOptions, notice: fn(&str)) -> Option<Arc<Cache>> {
    if options.cache_bytes_max == Some(0) {
        return None;
    }
    let directory = options.cache_directory.clone().or_else(CacheOptions::default_directory)?;
    let shown = directory.display().to_string();
    let options =
        CacheOptions { size_bytes_max: options.cache_bytes_max, ..CacheOptions::new(directory, Arc::new(notice)) };
    match Cache::open(options) {
        Ok(cache) => Some(cache),
        Err(error) => {
            notice(&format!("no cache in {shown}: {error}"));
            None
        }
    }
}
