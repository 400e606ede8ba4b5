//! Opens remote images for reading.

use std::{io, path::PathBuf, sync::Arc, thread};

use floe_image::{ImageSource, ShownName, SourceIdentity, SourceOrigin, metrics};
use floe_remote_cache::{
    AheadReason, Cache, CacheCounts, CacheOptions, CachedSource, DigestTable, FetchError, FetchFault, RangeFetcher,
    SourceOptions, TableRoot, Trust,
};
use serde::{Deserialize, Serialize};

use crate::{
    LaunchList, Network, RemoteCounts, RemoteLocation, RemoteObject, RemoteOptions, launch::Launch,
    resolution::Resolution,
};

/// Options for opening a remote image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageOptions {
    /// Options for fetching.
    pub remote: RemoteOptions,
    /// Whether images whose bytes cannot be verified are refused.
    pub require_verified: bool,
    /// The cache directory; `None` for the user's default.
    pub cache_directory: Option<PathBuf>,
    /// The maximum size of the cache in bytes; 0 disables it; `None` for a share of the file system.
    pub cache_bytes_max: Option<u64>,
}

/// Properties of a remote image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageAbout {
    /// The URL, without credentials; in registries with digests.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// The root of trust; `None` if bytes are not verified.
    pub verified_by: Option<String>,
    /// Whether the server could not be reached, so that the remembered resolution of the URL is used.
    pub is_recalled: bool,
    /// Whether a launch bundle is being fetched.
    pub has_launch_bundle: bool,
    /// The version that the server states; `None` if bytes are verified.
    pub version: Option<String>,
}

impl ImageAbout {
    /// Whether this is the same image, opened again.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        (self.len, &self.verified_by, &self.version) == (other.len, &other.verified_by, &other.version)
    }

    /// What tells the image from all others; `None` if its bytes are not verified.
    pub(crate) fn identity(&self) -> Option<SourceIdentity> {
        let origin = SourceOrigin::Digest(self.verified_by.clone()?);
        Some(SourceIdentity { origin, offset: 0, len: self.len })
    }
}

metrics! {
    /// Counters of a remote image and of its use of the cache.
    #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct ImageCounts {
        /// Reads that the cache answered.
        pub cache_hits: u64 = Counter,
        /// Reads that the cache could not answer.
        pub cache_misses: u64 = Counter,
        /// Reads that waited for a fetch by another thread or process.
        pub cache_joined: u64 = Counter,
        /// Fetched chunks that failed verification.
        pub verification_failures: u64 = Counter,
        /// Chunks that were served without being stored.
        pub uncached_chunks: u64 = Counter,
        ;
        /// Requests to the server.
        pub remote: RemoteCounts,
        /// Bytes fetched ahead of readers, by reason.
        pub ahead: Vec<ReasonCounts>,
    }
}

/// Bytes that were fetched although no reader waited for them, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReasonCounts {
    /// The reason's name.
    pub reason: String,
    /// All of them.
    pub fetched_bytes: u64,
    /// Those that a reader has read since, in whole chunks.
    pub read_bytes: u64,
}

/// An open remote image.
pub struct RemoteImage {
    about: ImageAbout,
    network: Network,
    object: Arc<RemoteObject>,
    source: CachedSource,
    /// Reads from the launch bundle, if there is one.
    launch: Option<Launch>,
}

impl RemoteImage {
    /// Opens the image at `location`, a URL. `notice` receives messages for users.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `location` is invalid; otherwise the image does not exist, or cannot be
    /// verified as required.
    pub fn open(location: &str, options: &ImageOptions, notice: fn(&str)) -> io::Result<Self> {
        Self::open_over(Network::new(options.remote.clone())?, location, options, notice)
    }

    /// Like [`RemoteImage::open`], over a network with these options; closing it ends the attempt.
    pub(crate) fn open_over(
        network: Network,
        location: &str,
        options: &ImageOptions,
        notice: fn(&str),
    ) -> io::Result<Self> {
        let location: RemoteLocation =
            location.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let cache = open_cache(options, notice);
        let object = open_or_recall(&network, location, cache.as_deref(), notice)?;
        let Resolution { mut key, name, bundle } = object.resolution().clone();
        // An object that cannot be distinguished from its successor must not be cached.
        let may_be_kept = !matches!(&key.trust, Trust::Location(place) if place.etag.is_empty());
        let cache = cache.filter(|_| may_be_kept);
        if let (Trust::Table(root), Some(cache)) = (&mut key.trust, &cache) {
            *root = kept_table(root.clone(), key.len, Arc::clone(cache));
        }
        // The bundle is requested before the image.
        let launch = bundle.zip(cache.as_ref()).and_then(|(bundle, cache)| {
            let launch = Launch::begin(cache, bundle, object.bundle_object(), notice);
            launch.inspect_err(|error| notice(&format!("the launch bundle: {error}"))).ok()
        });
        let about = ImageAbout {
            name,
            len: key.data_len(),
            verified_by: match &key.trust {
                Trust::Verity(root) => Some(format!("dm-verity sha256:{}", root.root_hash)),
                Trust::Tree(root) => Some(format!("tree sha256:{}", root.root_hash)),
                Trust::Table(table) => Some(format!("table sha256:{}", table.digest())),
                Trust::Location(_) => None,
            },
            is_recalled: !object.is_open(),
            has_launch_bundle: launch.is_some(),
            version: match &key.trust {
                Trust::Location(place) => Some(place.etag.clone()),
                Trust::Verity(_) | Trust::Tree(_) | Trust::Table(_) => None,
            },
        };
        let source_options = SourceOptions { require_verified: options.require_verified, ..SourceOptions::default() };
        let fetcher: Arc<dyn RangeFetcher> = Arc::clone(&object) as Arc<dyn RangeFetcher>;
        let source = CachedSource::open(cache.as_ref(), key, fetcher, source_options)?;
        if let Some(launch) = &launch {
            // With the first chunk comes the digest table, which a read that the bundle cannot serve would wait for.
            source.will_need(0, 1);
            launch.decide(&source);
        }
        let has_list = !matches!(object.location(), RemoteLocation::Registry(_));
        if has_list && !about.is_recalled && cache.is_some() && !source.is_whole() {
            let (object, source) = (Arc::clone(&object), source.clone());
            // Without the thread, the bytes come when they are read.
            let spawned = thread::Builder::new().name("floe-launch-list".to_owned());
            drop(spawned.spawn(move || LaunchList::follow(&object, &source)));
        }
        Ok(Self { about, network, object, source, launch })
    }

    /// Properties of the image.
    pub fn about(&self) -> &ImageAbout {
        &self.about
    }

    /// The counters so far.
    pub fn counts(&self) -> ImageCounts {
        let launch = self.launch.as_ref().map(Launch::counts).unwrap_or_default();
        let CacheCounts { hits, misses, joined, ahead, verification_failures, uncached_chunks, .. } =
            self.source.counts();
        let ahead =
            AheadReason::ALL.iter().zip(ahead.iter().zip(launch.ahead)).map(|(reason, (image, bundle))| ReasonCounts {
                reason: reason.name().to_owned(),
                fetched_bytes: image.fetched_bytes + bundle.fetched_bytes,
                read_bytes: image.read_bytes + bundle.read_bytes,
            });
        ImageCounts {
            remote: self.object.counts(),
            ahead: ahead.collect(),
            cache_hits: hits + launch.hits,
            cache_misses: misses + launch.misses,
            cache_joined: joined + launch.joined,
            verification_failures: verification_failures + launch.verification_failures,
            uncached_chunks: uncached_chunks + launch.uncached_chunks,
        }
    }

    /// Cancels all waiting reads, and fails all later ones.
    pub fn close(&self) {
        self.network.close();
    }
}

impl Drop for RemoteImage {
    fn drop(&mut self) {
        // Dropping the source would otherwise wait for prefetch.
        self.close();
    }
}

impl ImageSource for RemoteImage {
    fn len(&self) -> u64 {
        self.about.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        match &self.launch {
            Some(launch) => launch.read_at(&self.source, offset, output),
            None => self.source.read_at(offset, output),
        }
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        match &self.launch {
            Some(launch) => launch.try_read_at(&self.source, offset, output),
            None => self.source.try_read_at(offset, output),
        }
    }

    fn identity(&self) -> Option<SourceIdentity> {
        self.about.identity()
    }

    fn reads_around(&self) -> bool {
        true
    }

    fn will_need(&self, offset: u64, len: u64) {
        if let Some(launch) = &self.launch {
            launch.decide(&self.source);
        }
        self.source.will_need(offset, len);
    }

    fn dont_need(&self, offset: u64, len: u64) {
        self.source.dont_need(offset, len);
    }
}

/// Opens the object and remembers its resolution. If the server cannot be reached, uses the remembered resolution.
fn open_or_recall(
    network: &Network,
    location: RemoteLocation,
    cache: Option<&Cache>,
    notice: fn(&str),
) -> io::Result<Arc<RemoteObject>> {
    let object = match network.open(&location) {
        Ok(object) => {
            if let Some(cache) = cache {
                object.resolution().remember(cache, &location);
            }
            object
        }
        Err(error) => {
            let is_outage = FetchError::inside(&error).is_some_and(|error| error.fault() == FetchFault::Outage);
            let recalled = cache.filter(|_| is_outage).and_then(|cache| Resolution::recall(cache, &location));
            let Some(resolution) = recalled else { return Err(error) };
            notice(&format!("{error}; continuing with the content of the cache"));
            RemoteObject::recalled(network.shared(), location, resolution)
        }
    };
    Ok(Arc::new(object))
}

/// Reads a digest table from the cache, or fetches it and keeps it there.
fn kept_table(root: TableRoot, object_len: u64, cache: Arc<Cache>) -> TableRoot {
    let digest = *root.digest();
    TableRoot::new(digest, move || {
        let kept = cache.blob(&digest, DigestTable::bytes_for(object_len));
        if let Some(table) = kept.and_then(|bytes| DigestTable::parse_for(&bytes, &digest, object_len).ok()) {
            return Ok(table);
        }
        let table = root.table()?;
        cache.keep_blob(&digest, &table.to_bytes());
        Ok(table.clone())
    })
}

/// Opens the cache. If the cache cannot be used, a notice says so, and the image is read without it.
fn open_cache(options: &ImageOptions, notice: fn(&str)) -> Option<Arc<Cache>> {
    if options.cache_bytes_max == Some(0) {
        return None;
    }
    let directory = options.cache_directory.clone().or_else(CacheOptions::default_directory)?;
    let shown = directory.shown().to_string();
    let options =
        CacheOptions { size_bytes_max: options.cache_bytes_max, ..CacheOptions::new(directory, Arc::new(notice)) };
    match Cache::open(options) {
        Ok(cache) => Some(cache),
        Err(error) => {
            notice(&format!("no cache in {shown}: {error}; the image is read without it"));
            None
        }
    }
}
