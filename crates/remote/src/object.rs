//! Open remote objects.

use std::{
    io,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_remote_cache::{
    Cause, Digest, DigestTable, Location, OBJECT_BYTES_MAX, ObjectKey, RangeFetcher, Trust, hand_over,
};
use tokio::sync::mpsc::unbounded_channel;
use url::Url;

use crate::{
    Outage, RemoteCounts, RemoteLocation,
    arrival::Arrival,
    fault::Fault,
    host_limit::{PREFETCH_BYTES_AT_FIRST, REQUEST_BYTES_MAX, REQUEST_BYTES_MIN, WINDOW_AT_FIRST},
    launch_bundle::LaunchBundle,
    launch_pieces::LaunchPieces,
    network::Shared,
    object_origin::ObjectOrigin,
    origin::{Origin, Target},
    range_reply::Wanted,
    registry::{Layer, ResolvedBlob},
    requester::Requester,
    validator::Validator,
};

/// How long requests for a launch bundle are repeated. Readers get the same bytes from the image, so they need not wait.
const BUNDLE_OUTAGE: Outage = Outage::Wait(Duration::from_secs(2));

/// The suffix of a digest table's name, after the name of its image.
const TABLE_SUFFIX: &str = ".digests";

/// An open remote object: its length is known, and later answers must belong to the same object.
pub struct RemoteObject {
    requester: Requester,
    name: String,
    validator: Validator,
    key: ObjectKey,
    /// The bytes that arrived with the length, until they are read.
    head: Mutex<Option<Bytes>>,
    /// The ranges that a launch reads, if known.
    launch: LaunchPieces,
    /// The blob with the blocks that a launch reads, if there is one.
    bundle: Option<Arc<LaunchBundle>>,
    /// How long it took to resolve the image; zero if it was not resolved.
    resolved_in: Duration,
}

/// An object whose length is known.
struct Opened {
    requester: Requester,
    name: String,
    len: u64,
    validator: Validator,
    head: Bytes,
}

impl RemoteObject {
    /// Opens the object at `location` for reading in place.
    pub(crate) fn open(shared: &Arc<Shared>, location: &RemoteLocation) -> io::Result<Self> {
        let (object, layer) = Self::open_any(shared, location)?;
        match layer.as_ref().and_then(Layer::must_be_pulled) {
            Some(advice) => Err(Fault::refused(advice).at(location)),
            None => Ok(object),
        }
    }

    /// Opens the object at `location`. Also returns its layer, if it is in a registry.
    pub(crate) fn open_any(shared: &Arc<Shared>, location: &RemoteLocation) -> io::Result<(Self, Option<Layer>)> {
        let opened = shared.block_on(async {
            let object = match location {
                RemoteLocation::Web { url, table } => Self::of_web(shared, location, url, *table).await,
                RemoteLocation::Object { service, bucket, key, table } => {
                    let origin = |key: &str| ObjectOrigin::new(*service, bucket, key).map(Origin::Object);
                    let table = match table {
                        None => None,
                        Some(digest) => Some((origin(&format!("{key}{TABLE_SUFFIX}"))?, *digest)),
                    };
                    Self::of_origin(shared, location, origin(key)?, table).await
                }
                RemoteLocation::Registry(reference) => {
                    let began = Instant::now();
                    let blob = shared.registries.resolve(reference, shared).await?;
                    let (layer, resolved_in) = (blob.layer.clone(), began.elapsed());
                    return Ok((Self { resolved_in, ..Self::of_blob(shared, blob)? }, Some(layer)));
                }
            };
            object.map(|object| (object, None))
        });
        opened.map_err(|fault| fault.at(location))
    }

    async fn of_web(
        shared: &Arc<Shared>,
        location: &RemoteLocation,
        url: &Url,
        table: Option<Digest>,
    ) -> Result<Self, Fault> {
        let table = table.map(|digest| {
            let mut url = url.clone();
            url.set_path(&format!("{}{TABLE_SUFFIX}", url.path()));
            (Origin::Web(Target::of_url(&url)), digest)
        });
        Self::of_origin(shared, location, Origin::Web(Target::of_url(url)), table).await
    }

    async fn of_origin(
        shared: &Arc<Shared>,
        location: &RemoteLocation,
        origin: Origin,
        table: Option<(Origin, Digest)>,
    ) -> Result<Self, Fault> {
        let name = location.to_string();
        let image = Opened::probe(shared, name.clone(), origin);
        let Some((table, digest)) = table else {
            let image = image.await?;
            let etag = image.validator.word();
            let trust = Trust::Location(Location { url: location.identity()?, etag });
            return Ok(Self::new(image, trust));
        };
        // Both requests in parallel take one round trip.
        let table = Opened::probe(shared, format!("{name}{TABLE_SUFFIX}"), table);
        let (image, table) = tokio::try_join!(image, table)?;
        let table = table.all(DigestTable::bytes_for(image.len)).await?;
        let table = table_for(&table, &digest, image.len)?;
        Ok(Self::new(image, Trust::Table(table.into())))
    }

    fn of_blob(shared: &Arc<Shared>, blob: ResolvedBlob) -> Result<Self, Fault> {
        let ResolvedBlob { origin, name, len, trust, layer } = blob;
        if len > OBJECT_BYTES_MAX {
            return Err(Fault::refused(format!("the manifest announces {len} bytes")));
        }
        let requester = Requester::new(Arc::clone(shared), Origin::Blob(origin));
        let opened = Opened { requester, name, len, validator: Validator::default(), head: Bytes::new() };
        Ok(Self { launch: layer.launch, bundle: layer.bundle.map(Arc::new), ..Self::new(opened, trust) })
    }

    fn new(opened: Opened, trust: Trust) -> Self {
        let Opened { requester, name, len, validator, head } = opened;
        let head = Mutex::new((!head.is_empty()).then_some(head));
        let (key, launch) = (ObjectKey { trust, len }, LaunchPieces::default());
        Self { requester, name, validator, key, head, launch, bundle: None, resolved_in: Duration::ZERO }
    }

    /// The object's root of trust, which is also its key in a cache.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The counters so far.
    pub fn counts(&self) -> RemoteCounts {
        self.requester.counters.snapshot()
    }

    /// The ranges that a launch reads, which are fetched first.
    pub(crate) fn launch(&self) -> &[ByteRange] {
        self.launch.runs()
    }

    /// The description of the blob with the blocks that a launch reads.
    pub(crate) fn bundle(&self) -> Option<&Arc<LaunchBundle>> {
        self.bundle.as_ref()
    }

    /// The blob of the bundle, whose requests are counted with those of this object.
    pub(crate) fn bundle_object(&self) -> Option<Self> {
        let (bundle, Origin::Blob(image)) = (self.bundle.as_ref()?, &self.requester.origin) else { return None };
        let origin = Origin::Blob(image.sibling(bundle.digest()));
        let Requester { shared, counters, .. } = &self.requester;
        let requester = Requester::with(Arc::clone(shared), origin, Arc::clone(counters), BUNDLE_OUTAGE);
        let (name, len) = (format!("the launch bundle of {}", self.name), bundle.len());
        let opened = Opened { requester, name, len, validator: Validator::default(), head: Bytes::new() };
        let object = Self::new(opened, Trust::Table(bundle.table().clone().into()));
        Some(Self { resolved_in: self.resolved_in, ..object })
    }

    /// The preferred size of a request in bytes, once the host's latency and bandwidth are known.
    pub(crate) fn measured_request_bytes(&self) -> Option<u64> {
        self.requester.limit()?.request_bytes()
    }

    /// How long it took to resolve the image: two or more round trips.
    pub(crate) fn resolved_in(&self) -> Duration {
        self.resolved_in
    }

    /// The bytes of `range`, if they arrived with the length.
    fn head_part(&self, range: ByteRange) -> Option<Bytes> {
        let head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        let head = head.as_ref()?;
        let (from, to) = (usize::try_from(range.offset()).ok()?, usize::try_from(range.end()).ok()?);
        (to <= head.len()).then(|| head.slice(from..to))
    }

    fn fetch_now(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        let place = format_args!("{}, bytes {}-{}", self.name, range.offset(), range.end().saturating_sub(1));
        if range.end() > self.key.len {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{place}: past the end")));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let wanted = |range| Wanted { range, object_len: Some(self.key.len), validator: Some(&self.validator) };
        let pieces = range.len().div_ceil(REQUEST_BYTES_MAX);
        let fetched = self.requester.shared.block_on(async {
            if pieces == 1 {
                return self.requester.fetch(&wanted(range), cause).await.map(|fetched| fetched.bytes);
            }
            let mut bytes = Vec::new();
            for index in 0..pieces {
                let offset = range.offset() + index * REQUEST_BYTES_MAX;
                let piece = ByteRange::new(offset, REQUEST_BYTES_MAX.min(range.end() - offset));
                bytes.extend_from_slice(&self.requester.fetch(&wanted(piece), cause).await?.bytes);
            }
            Ok(bytes.into())
        });
        fetched.map_err(|fault| fault.at(place))
    }

    /// Fetches `range`, of at most [`REQUEST_BYTES_MAX`], with one request, and hands over its parts as they arrive.
    fn fetch_and_hand_over(
        &self,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        let place = format_args!("{}, bytes {}-{}", self.name, range.offset(), range.end().saturating_sub(1));
        let wanted = Wanted { range, object_len: Some(self.key.len), validator: Some(&self.validator) };
        let (sender, mut parts) = unbounded_channel();
        let arrival = Arrival::passed_on(usize::try_from(part_bytes).unwrap_or(usize::MAX), sender);
        let mut work = pin!(self.requester.fetch_into(arrival, &wanted, cause));
        let mut handed_over = 0;
        // The receiver may make requests of its own, so it is not called inside `block_on`.
        let bytes = loop {
            let step = self.requester.shared.block_on(async {
                tokio::select! {
                    biased;
                    Some(part) = parts.recv() => Ok(Step::Part(part)),
                    fetched = &mut work => fetched.map(|fetched| Step::End(fetched.bytes)),
                }
            });
            match step.map_err(|fault| fault.at(place))? {
                Step::Part(part) => {
                    handed_over += part.len();
                    arrived(part);
                }
                Step::End(bytes) => break bytes,
            }
        };
        hand_over(bytes.slice(handed_over.min(bytes.len())..), part_bytes, arrived);
        Ok(())
    }
}

/// A step of a request.
enum Step {
    /// A part has arrived.
    Part(Bytes),
    /// All bytes have arrived.
    End(Bytes),
}

impl RangeFetcher for RemoteObject {
    fn len(&self) -> u64 {
        self.key.len
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        match self.head_part(range) {
            Some(bytes) => Ok(bytes),
            None => self.fetch_now(range, cause),
        }
    }

    fn fetch_in_parts(
        &self,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        if range.is_empty() || range.len() > REQUEST_BYTES_MAX || range.end() > self.key.len {
            hand_over(self.fetch(range, cause)?, part_bytes, arrived);
            return Ok(());
        }
        match self.head_part(range) {
            Some(bytes) => hand_over(bytes, part_bytes, arrived),
            None => self.fetch_and_hand_over(range, part_bytes, cause, arrived)?,
        }
        Ok(())
    }

    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.requester.turn_away(None);
        self.fetch_now(range, cause)
    }

    fn request_bytes(&self, cause: Cause) -> u64 {
        let at_first = if cause == Cause::Prefetch { PREFETCH_BYTES_AT_FIRST } else { REQUEST_BYTES_MIN };
        self.measured_request_bytes().unwrap_or(at_first)
    }

    fn promote(&self, range: ByteRange) {
        self.requester.hurry(range);
    }

    fn connections(&self) -> usize {
        self.requester.limit().map_or(WINDOW_AT_FIRST as usize, |limit| limit.window())
    }
}

impl Opened {
    /// Determines the length of an object; the same answer contains its first bytes.
    async fn probe(shared: &Arc<Shared>, name: String, origin: Origin) -> Result<Self, Fault> {
        let requester = Requester::new(Arc::clone(shared), origin);
        let wanted = Wanted { range: ByteRange::new(0, REQUEST_BYTES_MIN), object_len: None, validator: None };
        let fetched = requester.fetch(&wanted, Cause::Metadata).await?;
        let len = fetched.reply.object_len;
        if len > OBJECT_BYTES_MAX {
            return Err(Fault::refused(format!("the server announces {len} bytes")));
        }
        let validator = Validator::of(&fetched.headers);
        Ok(Self { requester, name, len, validator, head: fetched.bytes })
    }

    /// Reads a whole small object.
    async fn all(self, bytes_max: u64) -> Result<Bytes, Fault> {
        if self.len > bytes_max {
            return Err(Fault::refused(format!("{} has more than {bytes_max} bytes", self.name)));
        }
        let mut bytes = self.head.to_vec();
        while (bytes.len() as u64) < self.len {
            let offset = bytes.len() as u64;
            let range = ByteRange::new(offset, REQUEST_BYTES_MAX.min(self.len - offset));
            let wanted = Wanted { range, object_len: Some(self.len), validator: Some(&self.validator) };
            bytes.extend_from_slice(&self.requester.fetch(&wanted, Cause::Tree).await?.bytes);
        }
        Ok(bytes.into())
    }
}

/// Parses the digest table of an object of `len` bytes.
pub(crate) fn table_for(bytes: &[u8], digest: &Digest, len: u64) -> Result<DigestTable, Fault> {
    let table = DigestTable::parse(bytes, digest).map_err(|error| Fault::wrong(error.to_string()))?;
    if table.object_len() != len {
        let message = format!("the table of digests is for {} bytes, but the image has {len}", table.object_len());
        return Err(Fault::wrong(message));
    }
    Ok(table)
}
