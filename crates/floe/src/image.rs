//! An image that is open for reading, in its concrete format.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_engine::{Blocking, Engine, Reader, Volume};
use floe_erofs::{Erofs, SuperblockChecksum};
use floe_image::{
    Attr, BlockReader, ByteRange, DerivedFileSystem, DeviceId, ExtentData, FileSystem, FileType, ImageSource, Nid,
    Result, StoredLen,
};
use floe_source::ImageFormat;
use floe_squashfs::Squashfs;

use crate::{
    Format, ImageFiles, OpenError, OpenOptions, PathError, ReadDir, Walk, devices::check_flat, resolve::resolve,
};

/// An image that is open for reading. May be used from many threads at once. Clones are cheap and share its caches.
///
/// ```
/// use floe::{FileType, Image, OpenOptions};
///
/// # let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
/// let image = Image::open(demo, &OpenOptions::default())?;
/// let mut file_count = 0;
/// for entry in image.walk() {
///     let entry = entry?;
///     file_count += usize::from(entry.attr.file_type == FileType::Regular);
/// }
/// println!("{} files in this {} image", file_count, image.format());
///
/// let nid = image.resolve("/guide/reading.txt")?;
/// let mut beginning = [0; 64];
/// let len = image.read_at(nid, 0, &mut beginning)?;
/// println!("{}", String::from_utf8_lossy(&beginning[..len]));
/// # assert!(file_count > 3 && len == 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Image {
    reader: Reader,
    format_image: FormatImage,
    offset: u64,
    device_paths: Vec<PathBuf>,
}

impl Image {
    /// Opens the image in the file `path`.
    ///
    /// # Errors
    /// The file cannot be read, is not an EROFS or SquashFS image, is broken, uses unsupported features, or needs an extra
    /// device that is missing.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::of(ImageFiles::open(path.as_ref(), options)?, options)
    }

    /// Like [`Image::open`], in an engine that several images share: its memory, caches and threads. Images of equal content
    /// share what is cached, and the others are served fairly.
    ///
    /// ```
    /// use floe::{Engine, EngineOptions, Image, OpenOptions};
    ///
    /// # let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");
    /// let engine = Engine::new(&EngineOptions::default())?;
    /// let images = [demo, demo].map(|path| Image::open_in(&engine, path, &OpenOptions::default()));
    /// # assert!(images.iter().all(Result::is_ok));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn open_in(engine: &Arc<Engine>, path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::of_in(engine, ImageFiles::open(path.as_ref(), options)?, options)
    }

    /// Opens the image at a URL: `https://…`, `s3://bucket/key`, `gs://…`, `az://…` or `oci://registry/repository`.
    ///
    /// Threads of this process fetch bytes as they are read.
    ///
    /// # Errors
    /// As [`Image::open`], and if the server cannot be reached.
    #[cfg(feature = "remote")]
    pub fn open_url(url: &str, options: &OpenOptions) -> Result<Self, OpenError> {
        let remote = floe_remote::RemoteImage::open(url, &options.remote, |_| ());
        let remote = remote.map_err(|error| OpenError::Remote { error })?;
        let name = PathBuf::from(&remote.about().name);
        let source: Arc<dyn floe_image::ImageSource> = Arc::new(remote);
        Self::of(ImageFiles::of_source(&name, &source, options)?, options)
    }

    /// Opens an image in files that are already open. Opens no further files.
    ///
    /// # Errors
    /// The image is broken, uses unsupported features, or an extra device is missing.
    pub fn of(files: ImageFiles, options: &OpenOptions) -> Result<Self, OpenError> {
        let mut engine_options = options.engine.clone();
        if engine_options.spill_file_bytes > 0 && engine_options.spill_file_directory.is_none() {
            // The decoded data then stays on the disk of the image and shares its properties: encrypted, shared or
            // removable.
            engine_options.spill_file_directory = directory_of(&files.path);
        }
        Self::opened(files, |sources| Volume::alone(sources, &engine_options, &options.volume))
    }

    /// Like [`Image::of`], in an engine that several images share.
    ///
    /// # Errors
    /// As [`Image::of`].
    pub fn of_in(engine: &Arc<Engine>, files: ImageFiles, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::opened(files, |sources| Ok(engine.attach(sources, &options.volume)))
    }

    fn opened(
        files: ImageFiles,
        attach: impl FnOnce(Vec<Arc<dyn ImageSource>>) -> Result<Arc<Volume>>,
    ) -> Result<Self, OpenError> {
        let ImageFiles { path, source, offset, format, superblock_checksum, devices } = files;
        let devices = devices?;
        let failed = |error| OpenError::Image { path: path.clone(), error };
        let device_paths = devices.paths;
        let image_len = source.len();
        let sources = std::iter::once(source).chain(devices.sources).collect();
        let volume = attach(sources).map_err(failed)?;
        let blocks = volume.block_reader(Blocking::Allowed);
        let is_alone = blocks.device_count() == 1;
        let format_image = FormatImage::open(format, blocks, superblock_checksum).map_err(failed)?;
        let file_system = format_image.file_system();
        if is_alone {
            check_flat(&path, &devices.slots, image_len, file_system.info().block_size)?;
        }
        Ok(Self { reader: Reader::new(volume, file_system), format_image, offset, device_paths })
    }

    /// The reader, which combines the volume and the format.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The format's own operations: attributes, names, xattrs, and the location of a file's bytes.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        self.reader.file_system()
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format_image.format()
    }

    /// The image as its concrete format, for operations that only one format has.
    pub fn format_image(&self) -> &FormatImage {
        &self.format_image
    }

    /// Requests the bytes of the image's launch list, if it has one, so that its source reads them ahead. Does not
    /// wait. Entries that cannot be resolved are skipped.
    pub fn read_ahead_of_launch(&self) {
        let FormatImage::Erofs(erofs) = &self.format_image else { return };
        let Ok(source) = self.reader.volume().source(DeviceId(0)) else { return };
        for run in self.stored_runs(&erofs.launch_list().unwrap_or_default(), GAP_MAX) {
            source.will_need(run.offset(), run.len());
        }
    }

    /// Returns the stored bytes of `ranges` as ranges of the image, in the same order, 256 MiB at most. Ranges with at most
    /// `gap_max` bytes between them are joined; ranges that cannot be resolved are skipped.
    pub fn stored_runs(&self, ranges: &[(Nid, ByteRange)], gap_max: u64) -> Vec<ByteRange> {
        let runs = stored_runs(self.file_system().as_ref(), ranges, gap_max);
        runs.into_iter().map(|(offset, len)| ByteRange::new(offset, len)).collect()
    }

    /// The offset in the file at which the image begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The files of the extra devices, in the order of the device table.
    pub fn device_paths(&self) -> &[PathBuf] {
        &self.device_paths
    }

    /// The inode of `/`.
    pub fn root(&self) -> Nid {
        self.file_system().root()
    }

    /// The same image with the directory at `path` as its root.
    ///
    /// # Errors
    /// As [`Image::resolve`], and if the path leads to another type of file.
    pub fn below(&self, path: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let path = path.as_ref();
        let root = self.resolve(path)?;
        if self.attr(root)?.file_type != FileType::Directory {
            return Err(PathError::NotADirectory { path: path.to_vec() });
        }
        let file_system = Arc::new(DerivedFileSystem::below(Arc::clone(self.file_system()), root));
        let reader = Reader::new(Arc::clone(self.reader.volume()), file_system);
        Ok(Self { reader, ..self.clone() })
    }

    /// The attributes of an inode, as `stat` returns them.
    ///
    /// # Errors
    /// The inode cannot be read or breaks the format.
    pub fn attr(&self, nid: Nid) -> Result<Attr> {
        self.file_system().attr(nid)
    }

    /// Resolves `path` to an inode and follows symbolic links. Links and `..` never lead out of the image: absolute
    /// links begin at its root. A leading slash of `path` makes no difference.
    ///
    /// # Errors
    /// The path does not exist, links form a loop, or the image is corrupt or cannot be read.
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Nid, PathError> {
        resolve(self.file_system().as_ref(), path.as_ref(), true)
    }

    /// Like [`Image::resolve`], but returns a symbolic link at the end of the path instead of following it.
    ///
    /// # Errors
    /// As [`Image::resolve`].
    pub fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<Nid, PathError> {
        resolve(self.file_system().as_ref(), path.as_ref(), false)
    }

    /// Fills `output` with the bytes of a file from `offset` on. Returns the number of bytes, which is smaller than
    /// `output` only at the end of the file.
    ///
    /// # Errors
    /// The inode has no data, or the image is corrupt or cannot be read.
    pub fn read_at(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        self.reader.read(nid, offset, output)
    }

    /// Like [`Image::read_at`], if all bytes are in the cache of decoded blocks: it decodes no data and never waits. Returns
    /// `None` otherwise, and after an error, which `read_at` reports; `output` may then be partly filled.
    pub fn read_cached(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Option<usize> {
        self.reader.read_cached(nid, offset, output)
    }

    /// Lists a directory, without `.` and `..`.
    pub fn read_dir(&self, directory: Nid) -> ReadDir {
        ReadDir::new(Arc::clone(self.file_system()), directory)
    }

    /// Walks through the whole image, starting at `/`.
    pub fn walk(&self) -> Walk {
        self.walk_from(self.root(), b"/")
    }

    /// Walks through the tree below an inode; the paths of entries start with `path`.
    pub fn walk_from(&self, nid: Nid, path: impl AsRef<[u8]>) -> Walk {
        Walk::new(Arc::clone(self.file_system()), nid, path.as_ref())
    }
}

/// The directory that contains the file `path`, after following symbolic links.
fn directory_of(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()?.parent().map(Path::to_path_buf)
}

/// An open image as its concrete format, for operations that only one format has.
#[derive(Clone)]
pub enum FormatImage {
    /// EROFS.
    Erofs(Arc<Erofs>),
    /// SquashFS 4.
    Squashfs(Arc<Squashfs>),
}

impl FormatImage {
    /// Opens the image whose bytes `reader` returns.
    pub(crate) fn open(
        format: ImageFormat,
        reader: Arc<dyn BlockReader>,
        superblock_checksum: SuperblockChecksum,
    ) -> Result<Self> {
        Ok(match format {
            ImageFormat::Erofs => Self::Erofs(Arc::new(Erofs::open_with(reader, superblock_checksum)?)),
            ImageFormat::Squashfs => Self::Squashfs(Arc::new(Squashfs::open(reader)?)),
        })
    }

    /// The format.
    pub fn format(&self) -> ImageFormat {
        match self {
            Self::Erofs(_) => ImageFormat::Erofs,
            Self::Squashfs(_) => ImageFormat::Squashfs,
        }
    }

    /// The operations that both formats have.
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match self {
            Self::Erofs(erofs) => Arc::clone(erofs) as Arc<dyn FileSystem>,
            Self::Squashfs(squashfs) => Arc::clone(squashfs) as Arc<dyn FileSystem>,
        }
    }
}

/// The maximum number of bytes that are requested in total.
const WANTED_BYTES_MAX: u64 = 256 << 20;
/// Runs with at most this gap between them are requested as one, in bytes.
const GAP_MAX: u64 = 64 << 10;
/// The assumed stored length of a block whose length is unknown before it is read, in bytes.
const UNKNOWN_LEN: u64 = 8 << 10;

/// Returns the offsets and lengths at which the image file stores the data of `ranges`, in their order. Runs with at
/// most `gap_max` bytes between them are joined; ranges that cannot be resolved are skipped.
fn stored_runs(file_system: &dyn FileSystem, ranges: &[(Nid, ByteRange)], gap_max: u64) -> Vec<(u64, u64)> {
    let (mut runs, mut extents, mut bytes) = (Vec::<(u64, u64)>::new(), Vec::new(), 0);
    for (nid, range) in ranges {
        extents.clear();
        let Ok(attr) = file_system.attr(*nid) else { continue };
        let range = range.intersection(ByteRange::new(0, attr.size));
        // Bounds the mapping work that a launch list can cause.
        let range = ByteRange::new(range.offset(), range.len().min(WANTED_BYTES_MAX));
        if range.is_empty() || file_system.map(*nid, range, &mut extents).is_err() {
            continue;
        }
        for extent in &extents {
            let (device, offset, len) = match extent.data {
                ExtentData::Hole => continue,
                ExtentData::Plain { device, offset } => {
                    // The extent may begin before the range, and end after it.
                    let part = extent.range.intersection(range);
                    (device, offset.saturating_add(part.offset() - extent.range.offset()), part.len())
                }
                ExtentData::Encoded { block, .. } => match block.stored_len {
                    StoredLen::Known(len) => (block.device, block.offset, u64::from(len)),
                    StoredLen::Prefixed => (block.device, block.offset, UNKNOWN_LEN),
                },
            };
            if device != DeviceId(0) {
                continue;
            }
            let end = offset.saturating_add(len);
            match runs.last_mut() {
                Some((start, run_len)) if offset >= *start && offset <= (*start + *run_len).saturating_add(gap_max) => {
                    *run_len = (*run_len).max(end - *start);
                }
                _ => runs.push((offset, len)),
            }
            bytes += len;
            if bytes > WANTED_BYTES_MAX {
                return runs;
            }
        }
    }
    runs
}
