//! A block reader that caches everything it decodes: the simplest form of the engine's metadata cache.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use floe_image::{
    BlockReader, ByteRange, Bytes, DecodedBlock, DeviceId, FileSystem, ImageSource, Nid, Result, StoredBlock,
};
use floe_testkit::{
    DirectReader,
    corpus::{Corpus, ImageRecord},
};

/// Decodes each block once.
pub(crate) struct MemoReader {
    direct: DirectReader,
    decoded: Mutex<HashMap<u64, DecodedBlock>>,
    requests: AtomicU64,
}

#[allow(dead_code, reason = "each test uses a part of it")]
impl MemoReader {
    /// A reader of an image in memory.
    pub(crate) fn of(bytes: Vec<u8>) -> Arc<Self> {
        let direct = DirectReader::of(bytes);
        Arc::new(Self { direct, decoded: Mutex::default(), requests: AtomicU64::new(0) })
    }

    /// A reader of a corpus image, starting at the file system.
    pub(crate) fn of_image(corpus: &Corpus, image: &ImageRecord) -> Arc<Self> {
        let mut bytes = corpus.bytes(&image.image);
        bytes.drain(..usize::try_from(image.offset).expect("the offset is within the file"));
        Self::of(bytes)
    }

    /// As [`DirectReader::read_file`].
    pub(crate) fn read_file(&self, file_system: &dyn FileSystem, nid: Nid, range: ByteRange) -> Result<Vec<u8>> {
        self.direct.read_file(file_system, nid, range)
    }

    /// The underlying reader.
    pub(crate) const fn direct(&self) -> &DirectReader {
        &self.direct
    }

    /// The number of requests for decoded blocks.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl BlockReader for MemoReader {
    fn device_count(&self) -> u16 {
        self.direct.device_count()
    }

    fn device_len(&self, device: DeviceId) -> Result<u64> {
        self.direct.device_len(device)
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes> {
        self.direct.stored(device, offset, len)
    }

    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(known) = self.decoded.lock().expect("no panic while held").get(&block.offset) {
            return Ok(known.clone());
        }
        let decoded = self.direct.decoded(block)?;
        self.decoded.lock().expect("no panic while held").insert(block.offset, decoded.clone());
        Ok(decoded)
    }

    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        self.direct.add_derived(source)
    }
}
