//! A file system with a single file of holes, plain bytes, whole blocks and parts of blocks.

use std::{ops::ControlFlow, sync::Arc};

use floe_codec::encode::Compression;
use floe_engine::{EngineOptions, Reader, Volume, VolumeOptions};
use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DecodedLen, DeviceId, DirectoryCursor, Dirent, Encoding, Extent,
    ExtentData, FileSystem, FileSystemInfo, FileType, ImageSource, Nid, Padding, Result, StoredBlock, StoredLen,
    Timestamp,
};
use floe_testkit::{MemorySource, Random};

/// The decoded size of a block of [`Patchwork::costly`]: 15 pages.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) const COSTLY_BLOCK_BYTES: u16 = 61_440;

/// A file system with a single file, its image, and the expected content.
pub(crate) struct Patchwork {
    extents: Vec<Extent>,
    content: Vec<u8>,
    image: Vec<u8>,
}

/// The options of an engine with a single volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub(crate) engine: EngineOptions,
    pub(crate) volume: VolumeOptions,
}

impl Options {
    /// The reader of a patchwork whose image is `source`.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn reader(&self, patchwork: &Arc<Patchwork>, source: Arc<dyn ImageSource>) -> Reader {
        let volume = Volume::alone(vec![source], &self.engine, &self.volume).expect("an engine");
        Reader::new(volume, Arc::clone(patchwork) as _)
    }
}

impl From<EngineOptions> for Options {
    fn from(engine: EngineOptions) -> Self {
        Self { engine, volume: VolumeOptions::default() }
    }
}

impl From<VolumeOptions> for Options {
    fn from(volume: VolumeOptions) -> Self {
        Self { engine: EngineOptions::default(), volume }
    }
}

impl Patchwork {
    /// A file of about `size` bytes.
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let mut random = Random::new(seed);
        let (mut extents, mut content, mut image) = (Vec::new(), Vec::new(), Vec::new());
        while content.len() < size {
            let offset = content.len() as u64;
            let len = 1 + random.below(40_000) as usize;
            let kind = random.below(8);
            let data = match kind {
                0 => {
                    content.resize(content.len() + len, 0);
                    ExtentData::Hole
                }
                1 => {
                    let start = image.len() as u64;
                    let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                    image.extend_from_slice(&bytes);
                    content.extend_from_slice(&bytes);
                    ExtentData::Plain { device: DeviceId(0), offset: start }
                }
                _ => {
                    if kind == 2 {
                        image.push(0);
                    }
                    let start = image.len() as u64;
                    let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                    image.extend_from_slice(&bytes);
                    let skip = if kind < 5 { 0 } else { random.below(len as u64) as usize };
                    content.extend_from_slice(&bytes[skip..]);
                    let decoded_len = match kind {
                        3 => DecodedLen::AtLeast(len as u32),
                        4 => DecodedLen::AtMost(len as u32 + 100),
                        _ => DecodedLen::Exact(len as u32),
                    };
                    let block = StoredBlock {
                        device: DeviceId(0),
                        offset: start,
                        stored_len: StoredLen::Known(len as u32),
                        decoded_len,
                        encoding: Encoding::Stored,
                    };
                    ExtentData::Encoded { block, skip: skip as u32 }
                }
            };
            extents.push(Extent { range: ByteRange::between(offset, content.len() as u64), data });
        }
        Self { extents, content, image }
    }

    /// A file of `block_count` blocks of [`COSTLY_BLOCK_BYTES`] in an encoding that counts as costly until decodes were
    /// measured.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn costly(seed: u64, block_count: usize) -> Self {
        let mut random = Random::new(seed);
        let (mut extents, mut content, mut image) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..block_count {
            let (offset, start) = (content.len() as u64, image.len() as u64);
            let bytes: Vec<u8> = (0..COSTLY_BLOCK_BYTES).map(|_| random.below(256) as u8).collect();
            // A final DEFLATE block of the type "stored": its length, the inverted length, its bytes.
            image.push(1);
            image.extend_from_slice(&COSTLY_BLOCK_BYTES.to_le_bytes());
            image.extend_from_slice(&(!COSTLY_BLOCK_BYTES).to_le_bytes());
            image.extend_from_slice(&bytes);
            content.extend_from_slice(&bytes);
            let block = StoredBlock {
                device: DeviceId(0),
                offset: start,
                stored_len: StoredLen::Known((image.len() as u64 - start) as u32),
                decoded_len: DecodedLen::Exact(COSTLY_BLOCK_BYTES.into()),
                encoding: Encoding::Deflate { padding: Padding::None, window_log2: 15 },
            };
            let range = ByteRange::between(offset, content.len() as u64);
            extents.push(Extent { range, data: ExtentData::Encoded { block, skip: 0 } });
        }
        Self { extents, content, image }
    }

    /// A file of `block_count` blocks of 4 KiB in an encoding that counts as cheap. The first block is shorter by `skip` bytes.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn cheap(seed: u64, block_count: usize, skip: u64) -> Self {
        const BLOCK_BYTES: u64 = 4096;
        let mut random = Random::new(seed);
        let image: Vec<u8> = (0..block_count as u64 * BLOCK_BYTES).map(|_| random.below(256) as u8).collect();
        let extent = |number: u64| {
            let block = StoredBlock {
                device: DeviceId(0),
                offset: number * BLOCK_BYTES,
                stored_len: StoredLen::Known(BLOCK_BYTES as u32),
                decoded_len: DecodedLen::Exact(BLOCK_BYTES as u32),
                encoding: Encoding::Stored,
            };
            let skip_here = if number == 0 { skip } else { 0 };
            let start = number * BLOCK_BYTES + skip_here;
            let range = ByteRange::between(start - skip, (number + 1) * BLOCK_BYTES - skip);
            Extent { range, data: ExtentData::Encoded { block, skip: skip_here as u32 } }
        };
        let extents = (0..block_count as u64).map(extent).collect();
        Self { extents, content: image[skip as usize..].to_vec(), image }
    }

    /// A file of about `size` plain bytes in chunks, many of which share bytes, as in deduplicated chunk-based files.
    /// Neighbours in the image are not always neighbours in the file.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn chunks(seed: u64, size: usize) -> Self {
        const CHUNK_BYTES: usize = 512;
        let mut random = Random::new(seed);
        let image: Vec<u8> = (0..64 * CHUNK_BYTES).map(|_| random.below(256) as u8).collect();
        let (mut extents, mut content, mut start) = (Vec::new(), Vec::new(), 0);
        while content.len() < size {
            let offset = content.len() as u64;
            // Two chunks that are contiguous in the image with another one between them in the file: these must not be
            // merged.
            let from = if random.below(2) == 0 { start } else { random.below(64) as usize * CHUNK_BYTES };
            start = if from == start { (start + CHUNK_BYTES) % image.len() } else { start };
            content.extend_from_slice(&image[from..from + CHUNK_BYTES]);
            let data = ExtentData::Plain { device: DeviceId(0), offset: from as u64 };
            extents.push(Extent { range: ByteRange::between(offset, content.len() as u64), data });
        }
        Self { extents, content, image }
    }

    /// A file of `block_count` blocks of 1 MiB, compressed with MicroLZMA and a dictionary of up to 8 MiB.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn lzma(seed: u64, block_count: usize) -> Self {
        const BLOCK_BYTES: usize = 1 << 20;
        let mut random = Random::new(seed);
        let words: String = (0..BLOCK_BYTES / 4).map(|_| format!("{} ", random.below(9000))).collect();
        let decoded = &words.as_bytes()[..BLOCK_BYTES];
        let mut stored = vec![0; BLOCK_BYTES];
        let encoder = Compression::MicroLzma { level: 0, dictionary_bytes: 8 << 20 }.encoder();
        let len = encoder.and_then(|mut encoder| encoder.encode_whole(decoded, &mut stored)).expect("an encoder");
        stored.truncate(len.expect("it becomes shorter"));
        let extent = |number: usize| {
            let block = StoredBlock {
                device: DeviceId(0),
                offset: (number * stored.len()) as u64,
                stored_len: StoredLen::Known(stored.len() as u32),
                decoded_len: DecodedLen::Exact(BLOCK_BYTES as u32),
                encoding: Encoding::MicroLzma { padding: Padding::None, dictionary_bytes: 8 << 20 },
            };
            let range = ByteRange::new((number * BLOCK_BYTES) as u64, BLOCK_BYTES as u64);
            Extent { range, data: ExtentData::Encoded { block, skip: 0 } }
        };
        let extents = (0..block_count).map(extent).collect();
        Self { extents, content: decoded.repeat(block_count), image: stored.repeat(block_count) }
    }

    /// Returns the image as a source.
    pub(crate) fn source(&self) -> Arc<dyn ImageSource> {
        Arc::new(MemorySource::new(self.image.clone()))
    }

    /// The bytes that a read must return.
    pub(crate) fn expected(&self, offset: u64, len: u32) -> &[u8] {
        let start = self.content.len().min(offset as usize);
        &self.content[start..self.content.len().min(start + len as usize)]
    }

    /// The number of encoded extents.
    pub(crate) fn block_count(&self) -> usize {
        self.extents.iter().filter(|extent| matches!(extent.data, ExtentData::Encoded { .. })).count()
    }

    /// Requests of all sizes up to 512 KiB, some past the end.
    pub(crate) fn random_requests(&self, seed: u64, count: usize) -> Vec<(u64, u32)> {
        let mut random = Random::new(seed);
        let size = self.content.len() as u64;
        let mut request = || {
            let len_log2 = 4 + random.below(16);
            (random.below(size + 1000), 1 + random.below(1 << len_log2) as u32)
        };
        (0..count).map(|_| request()).collect()
    }

    /// Requests of up to 4 KiB.
    pub(crate) fn small_requests(&self, seed: u64, count: usize) -> Vec<(u64, u32)> {
        let mut random = Random::new(seed);
        (0..count).map(|_| (random.below(self.content.len() as u64), 1 + random.below(4096) as u32)).collect()
    }

    /// A request for a part of a block that is not so small that it is decoded again and again.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn some_partial_request(&self) -> (u64, u32) {
        let is_long =
            |extent: &&Extent| matches!(extent.data, ExtentData::Encoded { .. }) && extent.range.len() > 20_000;
        let extent = self.extents.iter().find(is_long).expect("a long block");
        (extent.range.offset() + 10, 500)
    }
}

impl FileSystem for Patchwork {
    fn with_reader(self: Arc<Self>, _: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        self
    }

    fn root(&self) -> Nid {
        Nid(0)
    }

    fn info(&self) -> FileSystemInfo {
        FileSystemInfo {
            format: "patchwork",
            magic: 0,
            block_size: 4096,
            block_count: 1,
            inode_count: 1,
            name_bytes_max: 255,
            built: Timestamp::default(),
            uuid: None,
            label: Vec::new(),
            features: Vec::new(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { has_acls: false, has_label: false, limits_inodes: true }
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        Ok(Attr {
            nid,
            inode_number: 1,
            file_type: FileType::Regular,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            size: self.content.len() as u64,
            link_count: 1,
            modified: Timestamp::default(),
            device: Default::default(),
            blocks_512: 0,
        })
    }

    fn lookup(&self, _: Nid, _: &[u8]) -> Result<Option<Nid>> {
        Ok(None)
    }

    fn read_dir(&self, _: Nid, _: DirectoryCursor, _: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _: Nid) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn xattr(&self, _: Nid, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn map(&self, _: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let first = self.extents.partition_point(|extent| extent.range.end() <= range.offset());
        extents.extend(self.extents[first..].iter().take_while(|extent| extent.range.offset() < range.end()));
        Ok(())
    }
}
