//! Serves the reads of a launch from its bundle.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    Cache, CacheCounts, CachedSource, Cause, FetchError, FetchFault, RangeFetcher, SECTION_BYTES, SourceOptions,
};
use floe_sync::Mutex;

use crate::{RemoteObject, host_limit::WINDOW_AT_FIRST, launch_bundle::LaunchBundle};

/// The maximum duration of a launch.
const LAUNCH_TIME_MAX: Duration = Duration::from_secs(30);

/// A launch is over if nothing was read from its bundle for this long after the needed bytes arrived.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// The interval between checks for the presence of the bundle, in milliseconds.
const CHECK_INTERVAL_MS: u64 = 100;

/// The number of requests that may be in flight at first, without the one that is reserved for demand.
const REQUEST_COUNT: u64 = WINDOW_AT_FIRST as u64 - 1;

/// The minimum size of the first requests in bytes.
const BYTES_AT_FIRST_MIN: u64 = 512 << 10;

/// The size of the first requests, in bytes per millisecond of a round trip, as 1 Gbit/s transfers them. The first request uses the
/// open connection. All others need new connections, which take at least one more round trip.
const BYTES_PER_MS: u64 = 125_000;

/// Serves the reads of a launch from its bundle, and decides when the launch is over. The bundle is an object of its own in
/// the cache, with its own digest table as its root, so that its pieces are verified, stored, shared and evicted like all
/// others. Reads that the bundle cannot serve go to the image.
pub(crate) struct Launch {
    bundle: Arc<LaunchBundle>,
    blob: CachedSource,
    fetcher: Arc<BundleFetcher>,
    notice: fn(&str),
    began: Instant,
    /// The times of the last use of the bundle and of the last check of its presence, in milliseconds after the beginning.
    used_ms: AtomicU64,
    checked_ms: AtomicU64,
    is_over: AtomicBool,
    /// Whether the bytes behind the needed ones are fetched too.
    fetches_rest: AtomicBool,
}

/// Fetches the bundle during the launch, and nothing afterwards.
struct BundleFetcher {
    /// `None` if the server could not be reached when the image was opened.
    object: Option<RemoteObject>,
    name: String,
    len: u64,
    needed_len: u64,
    is_over: AtomicBool,
    /// The first error.
    failure: Mutex<Option<String>>,
}

impl Launch {
    /// Begins to fetch the bundle from `object`.
    ///
    /// # Errors
    /// The cache cannot be used.
    pub(crate) fn begin(
        cache: &Arc<Cache>,
        bundle: Arc<LaunchBundle>,
        object: Option<RemoteObject>,
        notice: fn(&str),
    ) -> io::Result<Self> {
        let name = object.as_ref().map_or_else(|| "the launch bundle".to_owned(), |object| object.name());
        let is_over = object.is_none();
        let (key, len) = (bundle.key(), bundle.len());
        let fetcher = BundleFetcher {
            object,
            name,
            len,
            needed_len: bundle.needed_len(),
            is_over: AtomicBool::new(is_over),
            failure: Mutex::default(),
        };
        let fetcher = Arc::new(fetcher);
        let fetched: Arc<dyn RangeFetcher> = Arc::clone(&fetcher) as Arc<dyn RangeFetcher>;
        let options = SourceOptions { reads_ahead: false, ..SourceOptions::default() };
        let blob = CachedSource::open(Some(cache), key, fetched, options)?;
        if !is_over {
            blob.pin(&[ByteRange::new(0, len)]);
            blob.will_need(0, bundle.needed_len());
        }
        Ok(Self {
            bundle,
            blob,
            fetcher,
            notice,
            began: Instant::now(),
            used_ms: AtomicU64::new(0),
            checked_ms: AtomicU64::new(0),
            is_over: AtomicBool::new(is_over),
            fetches_rest: AtomicBool::new(false),
        })
    }

    /// Fills `output` from the bundle and from `image`.
    ///
    /// # Errors
    /// The image cannot be read.
    pub(crate) fn read_at(&self, image: &CachedSource, offset: u64, output: &mut [u8]) -> io::Result<()> {
        check_range(image, offset, output.len())?;
        self.decide(image);
        self.in_parts(offset, output, |place, offset, output| {
            if let Some(place) = place {
                let needed_len = self.bundle.needed_len();
                if place >= needed_len && !self.fetches_rest.swap(true, Relaxed) {
                    // This launch differs from the recorded one, and is likely to need more of the rest.
                    self.blob.will_need(needed_len, self.bundle.len() - needed_len);
                }
                match self.blob.read_at(place, output) {
                    Ok(()) => return Ok(true),
                    Err(error) => self.fetcher.failed(&error),
                }
                self.decide(image);
            }
            image.read_at(offset, output).map(|()| true)
        })
        .map(drop)
    }

    /// Fills `output` if all of it is in memory.
    ///
    /// # Errors
    /// The range is not in the image.
    pub(crate) fn try_read_at(&self, image: &CachedSource, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        check_range(image, offset, output.len())?;
        self.decide(image);
        self.in_parts(offset, output, |place, offset, output| match place {
            Some(place) if self.blob.try_read_at(place, output)? => Ok(true),
            _ => image.try_read_at(offset, output),
        })
    }

    /// Decides whether the launch continues, and whether other bytes of the image are fetched ahead: not during the launch,
    /// because they would compete with its bytes.
    pub(crate) fn decide(&self, image: &CachedSource) {
        if self.is_over.load(Relaxed) {
            return;
        }
        let failure = self.fetcher.failure.lock().clone();
        if failure.is_none() && !self.is_quiet() {
            image.hold_prefetch(true);
            return;
        }
        if self.is_over.swap(true, Relaxed) {
            return;
        }
        self.fetcher.is_over.store(true, Relaxed);
        image.hold_prefetch(false);
        if let Some(failure) = failure {
            (self.notice)(&format!("{failure}; fetching the bytes of the launch from the image"));
            self.bundle.image_ranges().iter().for_each(|range| image.will_need(range.offset(), range.len()));
        }
    }

    /// The counters of the bundle.
    pub(crate) fn counts(&self) -> CacheCounts {
        self.blob.counts()
    }

    /// Whether the launch has ended: its needed bytes have arrived, and reads of the bundle have stopped.
    fn is_quiet(&self) -> bool {
        let elapsed = self.began.elapsed();
        let now_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let since_use = Duration::from_millis(now_ms.saturating_sub(self.used_ms.load(Relaxed)));
        if elapsed > LAUNCH_TIME_MAX {
            return true;
        }
        let is_due = now_ms.saturating_sub(self.checked_ms.load(Relaxed)) >= CHECK_INTERVAL_MS;
        if since_use < QUIET_TIME || !is_due {
            return false;
        }
        self.checked_ms.store(now_ms, Relaxed);
        let len = if self.fetches_rest.load(Relaxed) { self.bundle.len() } else { self.bundle.needed_len() };
        self.blob.has(ByteRange::new(0, len))
    }

    /// Calls `read` for each part of a range with its place in the bundle, its place in the image, and its part of `output`,
    /// until it returns `false`.
    fn in_parts(
        &self,
        mut offset: u64,
        mut output: &mut [u8],
        read: impl Fn(Option<u64>, u64, &mut [u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        while !output.is_empty() {
            let part = self.bundle.part_at(offset, output.len());
            let (now, rest) = output.split_at_mut(part.len);
            if part.place.is_some() {
                let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.used_ms.store(now_ms, Relaxed);
            }
            if !read(part.place, offset, now)? {
                return Ok(false);
            }
            offset += part.len as u64;
            output = rest;
        }
        Ok(true)
    }
}

/// Checks that a range is in the image. A bundle could otherwise provide bytes past the end of its data.
fn check_range(image: &CachedSource, offset: u64, len: usize) -> io::Result<()> {
    let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= image.len());
    if is_inside { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl BundleFetcher {
    /// Notes why the bundle cannot be used, unless the launch is over.
    fn failed(&self, error: &io::Error) {
        if !self.is_over.load(Relaxed) && error.kind() != io::ErrorKind::Interrupted {
            let mut failure = self.failure.lock();
            failure.get_or_insert_with(|| error.to_string());
        }
    }

    fn fetch_by<T>(&self, fetch: impl FnOnce(&RemoteObject) -> io::Result<T>) -> io::Result<T> {
        match self.object.as_ref().filter(|_| !self.is_over.load(Relaxed)) {
            Some(object) => fetch(object).inspect_err(|error| self.failed(error)),
            None => Err(FetchError::new(FetchFault::Outage, format!("{}: no longer needed", self.name)).into()),
        }
    }
}

impl RangeFetcher for BundleFetcher {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.fetch_by(|object| object.fetch(range, cause))
    }

    fn fetch_in_parts(
        &self,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        self.fetch_by(|object| object.fetch_in_parts(range, part_bytes, cause, arrived))
    }

    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.fetch_by(|object| object.fetch_elsewhere(range, cause))
    }

    /// Once the link was measured, at most a fifth of the needed bytes, so that they arrive nearly in the order of their use.
    fn request_bytes(&self, _cause: Cause) -> u64 {
        let part = self.needed_len.div_ceil(REQUEST_COUNT).next_multiple_of(SECTION_BYTES);
        let Some(object) = &self.object else { return part };
        let at_first = || {
            // Resolving takes at least two round trips: a handshake and a request.
            let round_trip_ms = u64::try_from(object.resolved_in().as_millis()).unwrap_or(u64::MAX) / 2;
            round_trip_ms.saturating_mul(BYTES_PER_MS).min(self.needed_len).max(BYTES_AT_FIRST_MIN)
        };
        object.measured_request_bytes().map_or_else(at_first, |measured| measured.min(part))
    }

    fn promote(&self, range: ByteRange) {
        if let Some(object) = &self.object {
            object.promote(range);
        }
    }

    fn connections(&self) -> usize {
        self.object.as_ref().map_or(1, |object| object.connections())
    }
}
