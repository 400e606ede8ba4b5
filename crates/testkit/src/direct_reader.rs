//! A block reader without caches or threads: the simplest form of the engine.

use std::{io, sync::Arc};

use floe_codec::Decoder;
use floe_image::{
    BlockReader, ByteRange, Bytes, DecodedBlock, Decompressor, DeviceId, Encoding, Error, Extent, ExtentData,
    FileSystem, ImageSource, Nid, Place, Result, StoredBlock, StoredLen,
};
use floe_sync::Mutex;

/// Reads and decodes each time anew: the simple path against which faster ones are checked.
pub struct DirectReader {
    sources: Vec<Arc<dyn ImageSource>>,
    derived: Mutex<Vec<Arc<dyn ImageSource>>>,
    decoder: Mutex<Decoder>,
}

impl DirectReader {
    /// Creates a reader of an image and its extra devices.
    pub fn new(sources: Vec<Arc<dyn ImageSource>>) -> Self {
        Self { sources, derived: Mutex::default(), decoder: Mutex::new(Decoder::new()) }
    }

    /// Creates a reader of an image in memory.
    pub fn of(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(vec![Arc::new(crate::MemorySource::new(bytes))])
    }

    /// The bytes of `range` of a file, cut at the file size.
    ///
    /// # Errors
    /// As for [`FileSystem::map`] and [`BlockReader`].
    pub fn read_file(&self, file_system: &dyn FileSystem, nid: Nid, range: ByteRange) -> Result<Vec<u8>> {
        let mut extents = Vec::new();
        file_system.map(nid, range, &mut extents)?;
        let mut data = Vec::new();
        for Extent { range: extent_range, data: place } in extents {
            let wanted = extent_range.intersection(range);
            if wanted.is_empty() {
                continue;
            }
            assert_eq!(wanted.offset(), range.offset() + data.len() as u64, "extents leave no gap");
            let (from, len) = (wanted.offset() - extent_range.offset(), wanted.len() as usize);
            match place {
                ExtentData::Hole => data.resize(data.len() + len, 0),
                ExtentData::Plain { device, offset } => {
                    let start = data.len();
                    data.resize(start + len, 0);
                    self.fill(device, offset + from, &mut data[start..])?;
                }
                ExtentData::Encoded { block, skip } => {
                    let mut bytes = self.decode_range(&block, skip as usize + from as usize, len)?.0;
                    if bytes.len() < len {
                        let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
                        return Err(Error::corrupt("block ends before the data that it should hold", place));
                    }
                    data.append(&mut bytes);
                }
            }
        }
        Ok(data)
    }

    fn fill(&self, device: DeviceId, offset: u64, output: &mut [u8]) -> Result<()> {
        let source = self.source(device)?;
        source.read_at(offset, output).map_err(|error| Error::io(device, offset, error))
    }

    fn source(&self, device: DeviceId) -> Result<Arc<dyn ImageSource>> {
        let derived = || self.derived.lock().get(derived_index(device)).cloned();
        let source = self.sources.get(usize::from(device.0)).cloned().or_else(derived);
        source.ok_or(Error::corrupt("no such device", Place { device, ..Place::UNKNOWN }))
    }

    fn decode_range(&self, block: &StoredBlock, skip: usize, len: usize) -> Result<(Vec<u8>, u64)> {
        let StoredBlock { device, offset, stored_len, decoded_len, mut encoding } = *block;
        let (start, stored_len) = match stored_len {
            StoredLen::Known(len) => (offset, len as usize),
            StoredLen::Prefixed => {
                let mut word = [0; 2];
                self.fill(device, offset, &mut word)?;
                let word = u16::from_le_bytes(word);
                if word & 0x8000 != 0 {
                    encoding = Encoding::Stored;
                }
                (offset + 2, usize::from(word & 0x7fff))
            }
        };
        if start.saturating_add(stored_len as u64) > self.source(device)?.len() {
            return Err(Error::io(device, start, io::ErrorKind::UnexpectedEof.into()));
        }
        let mut stored = vec![0; stored_len];
        self.fill(device, start, &mut stored)?;
        let mut output = vec![0; len];
        let mut decoder = self.decoder.lock();
        let decoded = decoder
            .decode(&encoding, decoded_len, &stored, skip, &mut output)
            .map_err(|error| error.at(Place { device, nid: None, offset: Some(offset) }))?;
        output.truncate(decoded);
        Ok((output, start + stored_len as u64))
    }
}

/// Derived sources are numbered downward from the largest number.
fn derived_index(device: DeviceId) -> usize {
    usize::from(u16::MAX - device.0)
}

impl BlockReader for DirectReader {
    fn device_count(&self) -> u16 {
        self.sources.len() as u16
    }

    fn device_len(&self, device: DeviceId) -> Result<u64> {
        Ok(self.source(device)?.len())
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes> {
        assert!(len <= <dyn BlockReader>::STORED_LEN_MAX, "formats read metadata in small pieces");
        let mut bytes = vec![0; len];
        self.fill(device, offset, &mut bytes)?;
        Ok(bytes.into())
    }

    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        let (bytes, stored_end) = self.decode_range(block, 0, block.decoded_len.bytes() as usize)?;
        Ok(DecodedBlock { bytes: bytes.into(), stored_end })
    }

    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        let mut derived = self.derived.lock();
        derived.push(source);
        Ok(DeviceId(u16::MAX - (derived.len() - 1) as u16))
    }
}
