//! Remote objects.

use std::{
    io,
    pin::pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_remote_cache::{
    Cause, Digest, DigestTable, FetchError, FetchFault, Location, OBJECT_BYTES_MAX, ObjectKey, REQUEST_BYTES_MAX,
    RangeFetcher, Trust, hand_over,
};
use floe_sync::Mutex;
use tokio::sync::mpsc::unbounded_channel;

use crate::{
    ImageReference, Network, Outage, RemoteCounts, RemoteLocation,
    arrival::Arrival,
    fault::Fault,
    host_limit::{PREFETCH_BYTES_AT_FIRST, REQUEST_BYTES_MIN, UNIT_BYTES_AT_FIRST, WINDOW_AT_FIRST},
    network::Shared,
    origin::{Bucket, Origin, Places},
    range_reply::{Validator, Wanted},
    registry::{Layer, Repository, ResolvedBlob},
    requester::Requester,
    resolution::Resolution,
};

/// How long requests for a launch bundle are repeated. Readers get the same bytes from the image, so they need not wait.
const BUNDLE_OUTAGE: Outage = Outage::Wait(Duration::from_secs(2));

/// The suffix of a digest table's name, after the name of its image.
const TABLE_SUFFIX: &str = ".digests";

/// A remote object: its length and its root of trust are known, and later answers must belong to the same object.
pub struct RemoteObject {
    shared: Arc<Shared>,
    location: RemoteLocation,
    resolution: Resolution,
    /// Not set while only the remembered resolution is known, because the server could not be reached.
    server: OnceLock<Server>,
}

/// The means of requesting ranges of an object.
struct Server {
    requester: Requester,
    validator: Validator,
    /// The blob with the hash tree beside the object, if there is one.
    tree: Option<TreeBlob>,
    /// The bytes that arrived with the length, until they are read.
    head: Mutex<Option<Bytes>>,
    /// The repository of the object, if it is in a registry.
    repository: Option<Repository>,
    /// How long it took to resolve the image; zero if it was not resolved.
    resolved_in: Duration,
}

/// The means of requesting ranges of a hash tree beside an object. Readers see it behind the object.
struct TreeBlob {
    requester: Requester,
    validator: Validator,
    len: u64,
}

/// An object that a server has described.
struct Opened {
    resolution: Resolution,
    server: Server,
    layer: Option<Layer>,
}

impl Network {
    /// Opens the image: determines its length and its root of trust. Waits according to the outage policy.
    ///
    /// # Errors
    /// The image does not exist, or cannot be reached.
    pub fn open(&self, location: &RemoteLocation) -> io::Result<RemoteObject> {
        let (object, layer) = RemoteObject::open(self.shared(), location)?;
        match layer.as_ref().and_then(Layer::must_be_pulled) {
            Some(advice) => Err(Fault::refused(advice).at(location)),
            None => Ok(object),
        }
    }
}

impl RemoteObject {
    /// Opens the object at `location`. Also returns its layer, if it is in a registry.
    pub(crate) fn open(shared: &Arc<Shared>, location: &RemoteLocation) -> io::Result<(Self, Option<Layer>)> {
        let Opened { resolution, server, layer } = Opened::at(shared, location)?;
        let (shared, location) = (Arc::clone(shared), location.clone());
        Ok((Self { shared, location, resolution, server: server.into() }, layer))
    }

    /// The object at `location` with its remembered resolution. The first fetch opens it.
    pub(crate) fn recalled(shared: &Arc<Shared>, location: RemoteLocation, resolution: Resolution) -> Self {
        Self { shared: Arc::clone(shared), location, resolution, server: OnceLock::new() }
    }

    /// The object's root of trust, which is also its key in a cache.
    pub fn key(&self) -> &ObjectKey {
        &self.resolution.key
    }

    /// The counters so far.
    pub fn counts(&self) -> RemoteCounts {
        self.server.get().map(|server| server.requester.counters.snapshot()).unwrap_or_default()
    }

    pub(crate) fn location(&self) -> &RemoteLocation {
        &self.location
    }

    pub(crate) fn resolution(&self) -> &Resolution {
        &self.resolution
    }

    /// Whether the server has been reached.
    pub(crate) fn is_open(&self) -> bool {
        self.server.get().is_some()
    }

    /// The launch bundle of the image, as an object whose requests are counted with those of the image.
    pub(crate) fn bundle_object(&self) -> Option<Self> {
        let (bundle, server) = (self.resolution.bundle.as_ref()?, self.server.get()?);
        let origin = server.repository.as_ref()?.origin(&bundle.digest()).ok()?;
        let counters = Arc::clone(&server.requester.counters);
        let requester = Requester::with(Arc::clone(&self.shared), origin, counters, BUNDLE_OUTAGE);
        let server = Server { resolved_in: server.resolved_in, ..Server::new(requester) };
        let name = format!("the launch bundle of {}", self.resolution.name);
        let resolution = Resolution { key: bundle.key(), name, bundle: None };
        let (shared, location) = (Arc::clone(&self.shared), self.location.clone());
        Some(Self { shared, location, resolution, server: server.into() })
    }

    /// The object whose name has this suffix after the name of this one, if it is not in a registry and has at most `bytes_max`.
    pub(crate) fn beside(&self, suffix: &str, bytes_max: u64) -> Option<Bytes> {
        let found = self.shared.block_on(async {
            let (server, len) = Server::probe(&self.shared, origin_beside(&self.location, suffix)?).await?;
            server.all(len, bytes_max).await
        });
        found.ok()
    }

    /// The preferred size of a request in bytes, once the host's latency and bandwidth are known.
    pub(crate) fn measured_request_bytes(&self) -> Option<u64> {
        self.server.get()?.requester.limit()?.request_bytes()
    }

    /// How long it took to resolve the image: two or more round trips.
    pub(crate) fn resolved_in(&self) -> Duration {
        self.server.get().map(|server| server.resolved_in).unwrap_or_default()
    }

    /// The server. Opens the object if that was not possible before.
    fn server(&self) -> io::Result<&Server> {
        if let Some(server) = self.server.get() {
            return Ok(server);
        }
        let Opened { resolution, server, .. } = Opened::at(&self.shared, &self.location)?;
        if resolution.key.id() != self.key().id() {
            let message = format!("{}: the object was replaced; mount it again", self.resolution.name);
            return Err(FetchError::new(FetchFault::Gone, message).into());
        }
        Ok(self.server.get_or_init(|| server))
    }

    /// The length of the object itself in bytes, without a hash tree beside it.
    pub(crate) fn blob_len(&self) -> u64 {
        self.key().blob_len()
    }

    /// The blob with a range that is all data or all tree, and the range in it.
    fn wanted<'server>(&self, server: &'server Server, range: ByteRange) -> (&'server Requester, Wanted<'server>) {
        let start = self.blob_len();
        let (requester, validator, range, len) = match &server.tree {
            Some(TreeBlob { requester, validator, len }) if range.offset() >= start => {
                (requester, validator, ByteRange::new(range.offset() - start, range.len()), *len)
            }
            _ => (&server.requester, &server.validator, range, start),
        };
        (requester, Wanted { range, object_len: Some(len), validator: Some(validator) })
    }

    fn fetch_now(&self, server: &Server, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        let place = self.place(range);
        if range.end() > self.len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{place}: past the end")));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let fetched = self.shared.block_on(async {
            if range.len() <= REQUEST_BYTES_MAX {
                let (requester, wanted) = self.wanted(server, range);
                return Ok(requester.fetch(&wanted, cause).await?.bytes);
            }
            let mut bytes = Vec::new();
            for offset in (range.offset()..range.end()).step_by(REQUEST_BYTES_MAX as usize) {
                let piece = ByteRange::new(offset, REQUEST_BYTES_MAX).intersection(range);
                let (requester, wanted) = self.wanted(server, piece);
                bytes.extend_from_slice(&requester.fetch(&wanted, cause).await?.bytes);
            }
            Ok(bytes.into())
        });
        fetched.map_err(|fault| fault.at(place))
    }

    /// Fetches `range`, of at most [`REQUEST_BYTES_MAX`], with one request, and hands over its parts as they arrive.
    fn fetch_and_hand_over(
        &self,
        server: &Server,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        let (requester, wanted) = self.wanted(server, range);
        let (sender, mut parts) = unbounded_channel();
        let arrival = Arrival::passed_on(usize::try_from(part_bytes).unwrap_or(usize::MAX), sender);
        let mut work = pin!(requester.fetch_into(arrival, &wanted, cause));
        let mut handed_over = 0;
        // The receiver may make requests of its own, so it is not called inside `block_on`.
        let bytes = loop {
            let step = self.shared.block_on(async {
                tokio::select! {
                    biased;
                    Some(part) = parts.recv() => Ok(Step::Part(part)),
                    fetched = &mut work => fetched.map(|fetched| Step::End(fetched.bytes)),
                }
            });
            match step.map_err(|fault| fault.at(self.place(range)))? {
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

    fn place(&self, range: ByteRange) -> String {
        format!("{}, bytes {}-{}", self.resolution.name, range.offset(), range.end().saturating_sub(1))
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
        self.key().len
    }

    fn name(&self) -> String {
        self.resolution.name.clone()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        let server = self.server()?;
        match server.head_part(range) {
            Some(bytes) => Ok(bytes),
            None => self.fetch_now(server, range, cause),
        }
    }

    fn fetch_in_parts(
        &self,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        let server = self.server()?;
        let is_one_request = !range.is_empty() && range.len() <= REQUEST_BYTES_MAX && range.end() <= self.len();
        if is_one_request && server.head_part(range).is_none() {
            return self.fetch_and_hand_over(server, range, part_bytes, cause, arrived);
        }
        hand_over(self.fetch(range, cause)?, part_bytes, arrived);
        Ok(())
    }

    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        let server = self.server()?;
        *server.head.lock() = None;
        self.wanted(server, range).0.turn_away(None);
        self.fetch_now(server, range, cause)
    }

    fn request_bytes(&self, cause: Cause) -> u64 {
        let is_prefetch = cause == Cause::Prefetch && self.is_open();
        let at_first = if is_prefetch { PREFETCH_BYTES_AT_FIRST } else { REQUEST_BYTES_MIN };
        self.measured_request_bytes().unwrap_or(at_first)
    }

    fn unit_bytes(&self) -> u64 {
        let limit = self.server.get().and_then(|server| server.requester.limit());
        limit.and_then(|limit| limit.unit_bytes()).unwrap_or(UNIT_BYTES_AT_FIRST)
    }

    fn promote(&self, range: ByteRange) {
        if let Some(server) = self.server.get() {
            let (requester, wanted) = self.wanted(server, range);
            requester.promote(wanted.range);
        }
    }

    fn connections(&self) -> usize {
        let Some(server) = self.server.get() else { return 1 };
        server.requester.limit().map_or(WINDOW_AT_FIRST as usize, |limit| limit.window())
    }
}

impl Server {
    fn new(requester: Requester) -> Self {
        Self {
            requester,
            validator: Validator::default(),
            tree: None,
            head: Mutex::default(),
            repository: None,
            resolved_in: Duration::ZERO,
        }
    }

    /// Determines the length of an object; the same answer contains its first bytes.
    async fn probe(shared: &Arc<Shared>, origin: Origin) -> Result<(Self, u64), Fault> {
        let requester = Requester::new(Arc::clone(shared), origin);
        let wanted = Wanted { range: ByteRange::new(0, REQUEST_BYTES_MIN), object_len: None, validator: None };
        let fetched = requester.fetch(&wanted, Cause::Metadata).await?;
        let len = fetched.reply.object_len;
        if len > OBJECT_BYTES_MAX {
            return Err(Fault::refused(format!("the server announces {len} bytes")));
        }
        let head = Mutex::new((!fetched.bytes.is_empty()).then_some(fetched.bytes));
        Ok((Self { validator: Validator::of(&fetched.headers), head, ..Self::new(requester) }, len))
    }

    /// Reads a whole small object of `len` bytes.
    async fn all(self, len: u64, bytes_max: u64) -> Result<Bytes, Fault> {
        if len > bytes_max {
            return Err(Fault::refused(format!("the object has {len} bytes, more than {bytes_max}")));
        }
        let mut bytes = self.head.into_inner().unwrap_or_default().to_vec();
        while (bytes.len() as u64) < len {
            let offset = bytes.len() as u64;
            let range = ByteRange::new(offset, REQUEST_BYTES_MAX.min(len - offset));
            let wanted = Wanted { range, object_len: Some(len), validator: Some(&self.validator) };
            bytes.extend_from_slice(&self.requester.fetch(&wanted, Cause::Tree).await?.bytes);
        }
        Ok(bytes.into())
    }

    /// The bytes of `range`, if they arrived with the length.
    fn head_part(&self, range: ByteRange) -> Option<Bytes> {
        let head = self.head.lock();
        let head = head.as_ref()?;
        let (from, to) = (usize::try_from(range.offset()).ok()?, usize::try_from(range.end()).ok()?);
        (to <= head.len()).then(|| head.slice(from..to))
    }
}

/// The origin of the object whose name has this suffix after that of the object at `location`.
fn origin_beside(location: &RemoteLocation, suffix: &str) -> Result<Origin, Fault> {
    match location {
        RemoteLocation::Web { url, .. } => {
            let mut url = url.clone();
            url.set_path(&format!("{}{suffix}", url.path()));
            Ok(Origin::Places(Places::of_url(&url)))
        }
        RemoteLocation::Object { service, bucket, key, .. } => {
            Bucket::new(*service, bucket, &format!("{key}{suffix}")).map(|bucket| Origin::Bucket(bucket.into()))
        }
        RemoteLocation::Registry(_) => Err(Fault::refused("objects in a registry have no names")),
    }
}

impl Opened {
    /// Opens the object at `location`.
    fn at(shared: &Arc<Shared>, location: &RemoteLocation) -> io::Result<Self> {
        let opened = shared.block_on(async {
            match location {
                RemoteLocation::Web { table, .. } | RemoteLocation::Object { table, .. } => {
                    let table =
                        table.map(|digest| origin_beside(location, TABLE_SUFFIX).map(|origin| (origin, digest)));
                    Self::of_origin(shared, location, origin_beside(location, "")?, table.transpose()?).await
                }
                RemoteLocation::Registry(reference) => Self::of_reference(shared, reference).await,
            }
        });
        opened.map_err(|fault| fault.at(location))
    }

    async fn of_origin(
        shared: &Arc<Shared>,
        location: &RemoteLocation,
        origin: Origin,
        table: Option<(Origin, Digest)>,
    ) -> Result<Self, Fault> {
        let name = location.to_string();
        let image = Server::probe(shared, origin);
        let ((server, len), trust) = match table {
            None => {
                let image = image.await?;
                let etag = image.0.validator.word();
                (image, Trust::Location(Location { url: location.identity()?, etag }))
            }
            Some((table, digest)) => {
                // Both requests in parallel take one round trip.
                let (image, table) = tokio::try_join!(image, Server::probe(shared, table))?;
                let bytes = table.0.all(table.1, DigestTable::bytes_for(image.1)).await?;
                let table = DigestTable::parse_for(&bytes, &digest, image.1)?;
                (image, Trust::Table(table.into()))
            }
        };
        let resolution = Resolution { key: ObjectKey { trust, len }, name, bundle: None };
        Ok(Self { resolution, server, layer: None })
    }

    async fn of_reference(shared: &Arc<Shared>, reference: &ImageReference) -> Result<Self, Fault> {
        let began = Instant::now();
        let ResolvedBlob { repository, name, trust, layer } = ResolvedBlob::find(reference, shared).await?;
        let requester = Requester::new(Arc::clone(shared), repository.origin(&layer.digest)?);
        let (tree, len) = match (&trust, layer.tree) {
            (Trust::Tree(root), Some((_, digest))) => {
                let (counters, outage) = (Arc::clone(&requester.counters), shared.options.outage);
                let requester = Requester::with(Arc::clone(shared), repository.origin(&digest)?, counters, outage);
                let len = root.object_len();
                (Some(TreeBlob { requester, validator: Validator::default(), len: len - layer.len }), len)
            }
            _ => (None, layer.len),
        };
        let (repository, resolved_in) = (Some(repository), began.elapsed());
        let server = Server { repository, resolved_in, tree, ..Server::new(requester) };
        let bundle = layer.bundle.clone().map(Arc::new);
        let resolution = Resolution { key: ObjectKey { trust, len }, name, bundle };
        Ok(Self { resolution, server, layer: Some(layer) })
    }
}
