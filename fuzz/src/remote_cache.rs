//! Remote objects whose hash tree or whose cached map is any bytes.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    BootId, Cache, CacheOptions, CachedSource, Cause, ObjectKey, RangeFetcher, SourceOptions, Trust, VerityOptions,
    append_verity,
};
use floe_testkit::Random;

/// How many bytes the image has: its tree of small blocks has three levels.
const IMAGE_BYTES: usize = 160 << 10;

/// An object that was sound once.
pub struct SampleObject {
    /// All of it.
    pub bytes: Vec<u8>,
    /// What its user trusts.
    pub key: ObjectKey,
}

/// Serves an object from memory, or nothing.
struct Server {
    bytes: Bytes,
    is_down: bool,
}

impl RangeFetcher for Server {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<Bytes> {
        if self.is_down {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(self.bytes.slice(range.offset() as usize..range.end() as usize))
    }
}

impl SampleObject {
    /// Always the same one.
    pub fn sound() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        fs::write(&path, Random::new(7).noise(IMAGE_BYTES)).expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("it opens");
        let options = VerityOptions { block_bytes: 512, ..VerityOptions::default() };
        let root = append_verity(&file, &options).expect("a tree");
        let mut bytes = vec![0; file.metadata().expect("a length").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("it is read");
        let key = ObjectKey { trust: Trust::Verity(root), len: bytes.len() as u64 };
        Self { bytes, key }
    }

    /// The object with this hash tree, and a part of that where data should be.
    ///
    /// `input` begins with where the part goes and how long it is, both in 512 bytes.
    pub fn with_tree(&self, input: &[u8]) -> Option<Vec<u8>> {
        let ([place, blocks], tree) = input.split_first_chunk::<2>()?;
        let mut bytes = self.bytes.clone();
        let data_len = self.key.data_len() as usize;
        let len = tree.len().min(bytes.len() - data_len);
        bytes[data_len..data_len + len].copy_from_slice(&tree[..len]);
        let part = (usize::from(*blocks) * 512).min(bytes.len() - data_len);
        let place = (usize::from(*place) * 512).min(data_len - part);
        bytes.copy_within(data_len..data_len + part, place);
        Some(bytes)
    }

    /// Reads an object of these bytes; whatever can be read is what it should be.
    pub fn read(&self, bytes: Vec<u8>) {
        let server = Server { bytes: bytes.into(), is_down: false };
        let source = CachedSource::open(None, self.key.clone(), Arc::new(server), SourceOptions::default());
        if let Ok(source) = source {
            self.read_source(&source);
        }
    }

    /// The cache in `folder`.
    pub fn cache(folder: &Path) -> Arc<Cache> {
        let mut options = CacheOptions::new(folder, Arc::new(|_| {}));
        (options.size_bytes_max, options.boot) = (Some(1 << 30), BootId::of("fuzz"));
        Cache::open(options).expect("the cache opens")
    }

    /// Opens the object in a cache, with its server or without.
    pub fn open(&self, cache: &Arc<Cache>, is_down: bool) -> io::Result<CachedSource> {
        let server = Server { bytes: self.bytes.clone().into(), is_down };
        CachedSource::open(Some(cache), self.key.clone(), Arc::new(server), SourceOptions::default())
    }

    /// Where the files of the object are in the cache of `folder`.
    pub fn directory(&self, folder: &Path) -> std::path::PathBuf {
        let id = self.key.id().to_string();
        folder.join("v1/objects").join(&id[..2]).join(id)
    }

    /// Reads all of a source in parts; whatever can be read is what it should be.
    pub fn read_source(&self, source: &CachedSource) {
        let mut output = [0; 4096];
        for offset in (0..self.key.data_len()).step_by(4096) {
            if source.read_at(offset, &mut output).is_ok() {
                assert_eq!(output, self.bytes[offset as usize..][..4096], "wrong bytes at {offset}");
            }
        }
    }
}
