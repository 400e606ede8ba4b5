//! Virtual images of reference images, read by Floe or mounted by the kernel.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use floe_engine::{Blocking, EngineOptions, Reader, Volume, VolumeOptions};
use floe_erofs::Erofs;
use floe_front::{KeptImage, VirtualImage};
use floe_fuse::{Detach, Mount, MountOptions, Mountpoint};
use floe_image::{BlockReader, ByteRange, FileSystem, ImageSource, Nid, Result};
use floe_squashfs::Squashfs;
use floe_testkit::{
    DirectReader, MemorySource,
    corpus::{Corpus, Format, ImageRecord},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// An image and its virtual image, over one engine.
pub(crate) struct Front {
    pub(crate) original: Arc<dyn FileSystem>,
    pub(crate) image: Arc<VirtualImage>,
    /// Reads the virtual image.
    pub(crate) reader: Reader,
    /// Reads the original.
    pub(crate) original_reader: Reader,
}

impl Front {
    pub(crate) fn new(sources: Vec<Arc<dyn ImageSource>>, format: Format) -> Result<Self> {
        Self::opened(sources, format, None)
    }

    /// The data behind a kept image.
    pub(crate) fn of_kept(sources: Vec<Arc<dyn ImageSource>>, format: Format, kept: &KeptImage) -> Result<Self> {
        Self::opened(sources, format, Some(kept))
    }

    fn opened(sources: Vec<Arc<dyn ImageSource>>, format: Format, kept: Option<&KeptImage>) -> Result<Self> {
        let options = EngineOptions { cache_bytes: 16 << 20, reserved_pages: 0, ..EngineOptions::default() };
        let volume = Volume::alone(sources, &options, &VolumeOptions::default())?;
        let blocks = volume.block_reader(Blocking::Allowed);
        let original = open(Arc::clone(&blocks), format)?;
        let (original_too, non_blocking) = (Arc::clone(&original), volume.block_reader(Blocking::Never));
        let image = Arc::new(match kept {
            Some(kept) => VirtualImage::open_kept(original_too, &blocks, non_blocking, kept)?,
            None => VirtualImage::open(original_too, &blocks, non_blocking)?,
        });
        let original_reader = Reader::new(Arc::clone(&volume), Arc::clone(&original));
        Ok(Self { original, reader: Reader::new(volume, Arc::clone(&image) as _), image, original_reader })
    }

    pub(crate) fn of_record(corpus: &Corpus, image: &ImageRecord) -> Result<Self> {
        Self::new(sources_of(corpus, image), image.format)
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>, format: Format) -> Result<Self> {
        Self::new(vec![Arc::new(MemorySource::new(bytes))], format)
    }

    /// The virtual image as bytes that Floe's reader of EROFS reads.
    pub(crate) fn source(&self) -> Arc<VirtualFile> {
        self.file(VirtualImage::NID, self.image.len())
    }

    /// The large file: an extra device of the virtual image.
    pub(crate) fn large_source(&self) -> Arc<VirtualFile> {
        self.file(VirtualImage::LARGE_NID, VirtualImage::LARGE_LEN)
    }

    fn file(&self, nid: Nid, len: u64) -> Arc<VirtualFile> {
        Arc::new(VirtualFile { reader: self.reader.clone(), nid, len, blocks: Mutex::default() })
    }

    /// The virtual image as Floe's reader of EROFS sees it.
    pub(crate) fn read_back(&self) -> Result<(Arc<DirectReader>, Erofs)> {
        open_erofs(vec![self.source(), self.large_source()])
    }
}

/// An EROFS image in `sources`, read without caches.
pub(crate) fn open_erofs(sources: Vec<Arc<dyn ImageSource>>) -> Result<(Arc<DirectReader>, Erofs)> {
    let reader = Arc::new(DirectReader::new(sources));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>)?;
    Ok((reader, erofs))
}

/// A virtual image as bytes, without an engine. It keeps the block that was read last.
pub(crate) struct DirectFile {
    reader: Arc<DirectReader>,
    image: Arc<VirtualImage>,
    last: Mutex<(u64, Vec<u8>)>,
}

impl DirectFile {
    pub(crate) fn new(reader: &Arc<DirectReader>, image: &Arc<VirtualImage>) -> Self {
        Self { reader: Arc::clone(reader), image: Arc::clone(image), last: Mutex::new((u64::MAX, Vec::new())) }
    }

    pub(crate) fn read(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        let mut position = offset;
        for part in split_at_blocks(offset, output) {
            let number = position / BLOCK as u64;
            let mut last = self.last.lock().expect("no panic while held");
            if last.0 != number {
                let range = ByteRange::new(number * BLOCK as u64, BLOCK as u64);
                *last = (number, self.reader.read_file(self.image.as_ref(), VirtualImage::NID, range)?);
            }
            let start = position as usize % BLOCK;
            part.copy_from_slice(&last.1[start..start + part.len()]);
            position += part.len() as u64;
        }
        Ok(())
    }
}

impl ImageSource for DirectFile {
    fn len(&self) -> u64 {
        self.image.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.read(offset, output).map_err(io::Error::other)
    }
}

pub(crate) fn open(reader: Arc<dyn BlockReader>, format: Format) -> Result<Arc<dyn FileSystem>> {
    Ok(match format {
        Format::Erofs => Arc::new(Erofs::open(reader)?),
        Format::Squashfs => Arc::new(Squashfs::open(reader)?),
    })
}

pub(crate) fn sources_of(corpus: &Corpus, image: &ImageRecord) -> Vec<Arc<dyn ImageSource>> {
    let mut bytes = corpus.bytes(&image.image);
    bytes.drain(..usize::try_from(image.offset).expect("the offset is within the file"));
    let devices = image.devices.iter().map(|device| corpus.bytes(device));
    std::iter::once(bytes).chain(devices).map(|bytes| Arc::new(MemorySource::new(bytes)) as _).collect()
}

/// The bytes of a virtual image. Blocks that are read in small parts are kept.
pub(crate) struct VirtualFile {
    reader: Reader,
    nid: Nid,
    len: u64,
    blocks: Mutex<HashMap<u64, Arc<Vec<u8>>>>,
}

/// The number of attempts to unmount a mount in use.
const UNMOUNT_TRIES: usize = 3000;

/// The block size of virtual images.
pub(crate) const BLOCK: usize = 4096;

impl VirtualFile {
    fn block(&self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        if let Some(block) = self.blocks.lock().expect("no panic while held").get(&number) {
            return Ok(Arc::clone(block));
        }
        let mut bytes = vec![0; BLOCK];
        let len = self.reader.read(self.nid, number * BLOCK as u64, &mut bytes).map_err(io::Error::other)?;
        assert_eq!(len, BLOCK, "a block is read whole");
        let block = Arc::new(bytes);
        self.blocks.lock().expect("no panic while held").insert(number, Arc::clone(&block));
        Ok(block)
    }

    /// The blocks that were read in small parts.
    pub(crate) fn kept_blocks(&self) -> Vec<(u64, Arc<Vec<u8>>)> {
        let mut blocks: Vec<_> = self
            .blocks
            .lock()
            .expect("no panic while held")
            .iter()
            .map(|(number, block)| (*number, Arc::clone(block)))
            .collect();
        blocks.sort();
        blocks
    }
}

impl ImageSource for VirtualFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(output.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if output.len() <= BLOCK {
            let mut position = offset;
            for byte_run in split_at_blocks(offset, output) {
                let block = self.block(position / BLOCK as u64)?;
                let start = position as usize % BLOCK;
                byte_run.copy_from_slice(&block[start..start + byte_run.len()]);
                position += byte_run.len() as u64;
            }
            return Ok(());
        }
        let len = self.reader.read(self.nid, offset, output).map_err(io::Error::other)?;
        if len == output.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The parts of `output`, whose first byte is byte `offset`, that are in one block each.
fn split_at_blocks(offset: u64, output: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = output.len().min(BLOCK - offset as usize % BLOCK);
    let (head, rest) = output.split_at_mut(first);
    std::iter::once(head).chain(rest.chunks_mut(BLOCK)).filter(|part| !part.is_empty())
}

/// A virtual image that the kernel has mounted. Dropping it removes all mounts.
pub(crate) struct KernelFront {
    directory: tempfile::TempDir,
    mount: Option<Mount>,
    /// The kept image that is mounted instead of the rendered one, and the image if that is a device of it.
    kept: Option<(PathBuf, Option<PathBuf>)>,
    pub(crate) front: Front,
}

impl KernelFront {
    /// Serves `front` and lets the kernel mount it, with `options` for the kernel's EROFS.
    pub(crate) fn new(front: Front, options: &str) -> std::result::Result<Self, String> {
        let served = Self::served(front)?;
        served.mount_front(options)?;
        Ok(served)
    }

    /// Serves `front`, which is not mounted yet.
    pub(crate) fn served(front: Front) -> std::result::Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("floe-front-").tempdir().map_err(|error| error.to_string())?;
        for name in ["hidden", "front"] {
            std::fs::create_dir(directory.path().join(name)).map_err(|error| error.to_string())?;
        }
        let hidden = Mountpoint::find(&directory.path().join("hidden")).map_err(|error| error.to_string())?;
        let options = MountOptions { direct_io: Some(VirtualImage::LARGE_NID), ..MountOptions::default() };
        let mounted = Mount::new(front.reader.clone(), hidden, &options);
        Ok(Self { directory, mount: Some(mounted.map_err(|error| error.to_string())?), kept: None, front })
    }

    /// Serves the data behind a kept image and lets the kernel mount that image, which is at `path`, with `image` as a device.
    pub(crate) fn of_kept(front: Front, path: &Path, image: Option<&Path>) -> std::result::Result<Self, String> {
        let mut served = Self::served(front)?;
        served.kept = Some((path.to_owned(), image.map(Path::to_owned)));
        served.mount_front("")?;
        Ok(served)
    }

    fn mount_front(&self, options: &str) -> std::result::Result<(), String> {
        let mut options = format!("device={},{options}", self.large_file().display());
        if let Some((_, image)) = &self.kept {
            let (large, small) = (self.large_file(), self.virtual_file());
            let devices = [Some(&large), Some(&small), image.as_ref()].into_iter().flatten();
            options = devices.map(|device| format!("device={}", device.display())).collect::<Vec<_>>().join(",");
        }
        let options = std::ffi::CString::new(options).expect("options without a zero byte");
        let source = self.kept.as_ref().map_or_else(|| self.virtual_file(), |(kept, _)| kept.clone());
        mount(&source, self.path(), "erofs", MountFlags::RDONLY, options.as_c_str())
            .map_err(|error| format!("the kernel does not mount {}: {error}", source.display()))
    }

    /// Makes the kernel drop all caches of this mount, but of no other.
    pub(crate) fn forget(&self, options: &str) -> std::result::Result<(), String> {
        // A child process of another test holds copies of open files until it executes its program.
        let unmounted = (0..UNMOUNT_TRIES).find_map(|_| match unmount(self.path(), UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(20));
                None
            }
            result => Some(result),
        });
        unmounted.unwrap_or(Err(rustix::io::Errno::BUSY)).map_err(|error| format!("unmounting: {error}"))?;
        let file = std::fs::File::open(self.virtual_file()).map_err(|error| error.to_string())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|error| error.to_string())?;
        self.mount_front(options)
    }

    /// The directory of the kernel's mount.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("front")
    }

    /// The large file.
    pub(crate) fn large_file(&self) -> PathBuf {
        self.directory.path().join("hidden").join(VirtualImage::LARGE_NAME)
    }

    /// The virtual image as a file.
    pub(crate) fn virtual_file(&self) -> PathBuf {
        self.directory.path().join("hidden").join(VirtualImage::NAME)
    }
}

impl Drop for KernelFront {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmounter().unmount(Detach::Lazily);
        }
    }
}

/// Whether directories keep their blocks, and therefore their sizes. Directories with other block sizes, or without blocks,
/// are packed anew.
pub(crate) fn keeps_directory_blocks(front: &Front) -> bool {
    let info = front.original.info();
    let omits_dots = info.features.iter().any(|word| word == "48bit");
    info.format == "erofs" && info.block_size == 4096 && !omits_dots
}

/// The warnings and errors that the kernel's EROFS and its name cache have written since `since`.
pub(crate) fn kernel_complaints(since: &KernelLog) -> Vec<String> {
    const MARK: &str = "<4>erofs: this line shows that the log is read\n";
    std::fs::write("/dev/kmsg", MARK).expect("root writes to the kernel's log");
    let complaints: Vec<String> = since.lines().into_iter().filter(|line| is_complaint(line)).collect();
    let is_mark = |line: &String| line.contains(MARK[3..].trim());
    assert!(complaints.iter().any(is_mark), "{complaints:?}");
    complaints.into_iter().filter(|line| !is_mark(line)).collect()
}

fn is_complaint(line: &str) -> bool {
    let is_ours = line.contains("erofs") || line.contains("VFS: ") || line.contains("BUG") || line.contains("hung");
    // A record begins with its priority. Levels 6 and 7 inform, as when another test mounts an image.
    let level = line.split(',').next().and_then(|priority| priority.parse::<u32>().ok()).map(|priority| priority % 8);
    is_ours && level.is_none_or(|level| level < 6)
}

/// The kernel's log from a point on.
pub(crate) struct KernelLog {
    file: std::fs::File,
}

impl KernelLog {
    pub(crate) fn from_now() -> Option<Self> {
        use rustix::fs::{Mode, OFlags, SeekFrom};
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(Path::new("/dev/kmsg"), flags, Mode::empty()).ok()?;
        rustix::fs::seek(&file, SeekFrom::End(0)).ok()?;
        Some(Self { file: file.into() })
    }

    fn lines(&self) -> Vec<String> {
        use std::io::Read;
        let (mut lines, mut record) = (Vec::new(), vec![0; 8192]);
        loop {
            match (&self.file).read(&mut record) {
                Ok(len) => lines.push(String::from_utf8_lossy(&record[..len]).trim().to_owned()),
                // Records were overwritten before they were read.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                Err(_) => return lines,
            }
        }
    }
}
