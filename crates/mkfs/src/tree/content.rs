//! The content of files.

pub(crate) mod referral;

use std::{
    fs::File,
    io, iter,
    ops::Range,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::{Nid, SeekTarget};
use rustix::{
    fs::{OFlags, SeekFrom, Stat},
    io::Errno,
};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh64::Xxh64;

use super::{
    listed::{AllocatedLen, ListedDirectory, ListedName},
    run::Run,
    source_image::SourceImage,
    source_root::is_gone,
};
use crate::error::{Error, Result};
use referral::{Referral, ReferredData};

/// Parts of content of this length in bytes that are all zeros are not hashed. It divides the length of the buffers.
const ZEROS_LEN: usize = 64 << 10;

/// The origin of a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A file that is opened for each read. The open file must still be the listed one.
    Listed { directory: Arc<ListedDirectory>, name: ListedName, identity: Identity, allocated: AllocatedLen },
    /// A region of an open file.
    Region { file: Arc<OpenFile>, offset: u64, size: u64 },
    /// Runs of an open file with holes between them.
    Sparse { file: Arc<OpenFile>, runs: Arc<[Run]>, size: u64 },
    /// Data on an extra device of the new image, which is not read.
    Referred(Box<Referral>),
    /// A file in an open image, with the number of its bytes that are not in holes.
    Stored { image: Arc<SourceImage>, nid: Nid, size: u64, stored_len: u64 },
}

/// An open file with the content of files.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<File>,
    /// Its path, for messages.
    pub(crate) path: PathBuf,
    /// Its state when it was opened; `None` for temporary files of the build, which cannot change.
    pub(crate) identity: Option<Identity>,
}

/// An extra device of the new image: its number and its path.
#[derive(Clone, Debug)]
pub(crate) struct Referrer {
    pub(crate) number: u16,
    pub(crate) path: Arc<PathBuf>,
}

/// Identifies a file and its state, to detect replacement and changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) size: u64,
    /// A hash of the device, the inode number and the times of modification and change.
    state: u64,
}

impl Identity {
    pub(crate) fn of(status: &Stat) -> Self {
        let times = [status.st_mtime, status.st_mtime_nsec, status.st_ctime, status.st_ctime_nsec];
        let mut state = Xxh64::new(0);
        [status.st_dev, status.st_ino].iter().for_each(|number| state.update(&number.to_le_bytes()));
        times.iter().for_each(|time| state.update(&time.to_le_bytes()));
        let size = u64::try_from(status.st_size).unwrap_or(0);
        Self { size, state: state.digest() }
    }

    /// The identity of an open file.
    pub(crate) fn of_file(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(&rustix::fs::fstat(file)?))
    }
}

impl Content {
    /// All of a temporary file of the build, which cannot change. Errors call it `path`.
    pub(crate) fn of_temporary(file: impl Into<Arc<File>>, path: &Path, size: u64) -> Self {
        let file = Arc::new(OpenFile { file: file.into(), path: path.to_path_buf(), identity: None });
        Self::Region { file, offset: 0, size }
    }

    /// The file `nid` of an image.
    pub(crate) fn of_image(image: &Arc<SourceImage>, nid: Nid, size: u64, may_have_holes: bool) -> Result<Self> {
        let stored_len = if may_have_holes {
            let ranges = image_data_ranges(image, nid, size, 1)?;
            ranges.iter().map(|range| range.end - range.start).sum()
        } else {
            size
        };
        Ok(Self::Stored { image: Arc::clone(image), nid, size, stored_len })
    }

    /// The same content as a reference to an extra device of the new image, which has blocks of this size.
    pub(crate) fn referred(&self, device: &Referrer, block_size: u64) -> Result<Self> {
        let (runs, size): (Box<[Run]>, u64) = match self {
            Self::Region { offset, size, .. } => (Box::new([Run { offset: 0, len: *size, position: *offset }]), *size),
            Self::Sparse { runs, size, .. } => (runs.to_vec().into(), *size),
            Self::Stored { image, nid, size, .. } => (image.runs(*nid, *size, block_size)?.into(), *size),
            Self::Listed { .. } | Self::Referred(_) => {
                return Err(Error::unfit(self.path(), "a directory cannot be an extra device"));
            }
        };
        let is_whole = |run: &Run| {
            let ends_well = run.len.is_multiple_of(block_size) || run.offset + run.len == size;
            run.offset.is_multiple_of(block_size) && run.position.is_multiple_of(block_size) && ends_well
        };
        if !runs.iter().all(is_whole) {
            let reason = format!("the data of a file does not begin at a multiple of {block_size} bytes");
            return Err(Error::unfit(self.path(), reason));
        }
        let (path, data) = (Arc::clone(&device.path), ReferredData::Runs { runs, tail: None });
        Ok(Self::Referred(Box::new(Referral { device: device.number, path, size, data })))
    }

    /// Whether the new image only refers to the content.
    pub(crate) fn is_referred(&self) -> bool {
        matches!(self, Self::Referred(_))
    }

    /// The size in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Listed { identity, .. } => identity.size,
            Self::Region { size, .. } | Self::Sparse { size, .. } | Self::Stored { size, .. } => *size,
            Self::Referred(referral) => referral.size,
        }
    }

    /// The path for error messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Listed { directory, name, .. } => directory.path_of(*name),
            Self::Region { file, .. } | Self::Sparse { file, .. } => file.path.clone(),
            Self::Referred(referral) => referral.path.to_path_buf(),
            Self::Stored { image, .. } => image.path().to_path_buf(),
        }
    }

    /// About how many bytes are not in holes.
    pub(crate) fn stored_len(&self) -> u64 {
        match self {
            Self::Listed { identity, allocated, .. } => identity.size.min(allocated.bytes()),
            Self::Region { size, .. } => *size,
            Self::Sparse { runs, .. } => runs.iter().map(|run| run.len).sum(),
            Self::Referred(referral) => referral.stored_len(),
            Self::Stored { stored_len, .. } => *stored_len,
        }
    }

    /// The ranges with data, aligned to `unit` bytes or ending with the file.
    pub(crate) fn data_ranges(&self, unit: u64) -> Result<Vec<Range<u64>>> {
        if self.stored_len() >= self.size() {
            return Ok(iter::once(0..self.size()).collect());
        }
        match self {
            Self::Sparse { runs, size, .. } => {
                let mut ranges = DataRanges::new(*size, unit);
                for run in runs.iter() {
                    ranges.add(run.offset, run.offset + run.len);
                }
                Ok(ranges.found)
            }
            Self::Stored { image, nid, size, .. } => image_data_ranges(image, *nid, *size, unit),
            Self::Listed { .. } | Self::Region { .. } | Self::Referred(_) => {
                let open = self.open()?;
                let Some(file) = open.file() else { return Ok(iter::once(0..self.size()).collect()) };
                let ranges = data_ranges(file, self.size(), unit);
                ranges.map_err(|error| Error::source(self.path(), "read")(error.into()))
            }
        }
    }

    /// A digest by which equal content is recognised. `buffer` is for reading.
    pub(crate) fn digest(&self, buffer: &mut [u8]) -> Result<[u8; 32]> {
        let open = self.open()?;
        let mut hasher = Sha256::new();
        // Trailing zeros are not hashed, so the size is included.
        hasher.update(self.size().to_le_bytes());
        for range in self.data_ranges(ZEROS_LEN as u64)? {
            let mut offset = range.start;
            while offset < range.end {
                let len = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(buffer.len());
                open.read_at(offset, &mut buffer[..len])?;
                for window in buffer[..len].chunks(ZEROS_LEN) {
                    // Zeros count as equal whether or not they are a hole.
                    if window.iter().any(|byte| *byte != 0) {
                        hasher.update(offset.to_le_bytes());
                        hasher.update(window);
                    }
                    offset += window.len() as u64;
                }
            }
        }
        open.check_unchanged()?;
        Ok(hasher.finalize().into())
    }

    /// Opens the content for reading.
    pub(crate) fn open(&self) -> Result<OpenContent<'_>> {
        match self {
            Self::Listed { directory, name, identity, .. } => {
                let (root, inner) = (&directory.root, directory.inner(*name));
                let changed = || Error::Changed { path: root.path_of(&inner) };
                let file = match root.open_below(&inner, OFlags::RDONLY | OFlags::NONBLOCK) {
                    Ok(file) => File::from(file),
                    // Another file, which cannot be opened, may have replaced it.
                    Err(error) => {
                        let now = root.open_below(&inner, OFlags::PATH).and_then(rustix::fs::fstat);
                        return Err(match now {
                            Ok(status) if Identity::of(&status) != *identity => changed(),
                            Err(error) if is_gone(error) => changed(),
                            _ => Error::source(root.path_of(&inner), "open")(error.into()),
                        });
                    }
                };
                let status = rustix::fs::fstat(&file);
                let status = status.map_err(|error| Error::source(root.path_of(&inner), "look at")(error.into()))?;
                if Identity::of(&status) != *identity {
                    return Err(changed());
                }
                let origin = Origin::File(file);
                let has_holes = AllocatedLen::of_blocks(status.st_blocks).bytes() < identity.size;
                Ok(OpenContent { content: self, origin, identity: Some(*identity), has_holes })
            }
            Self::Region { file, .. } | Self::Sparse { file, .. } => {
                let origin = Origin::SharedFile(&file.file);
                Ok(OpenContent { content: self, origin, identity: file.identity, has_holes: false })
            }
            Self::Referred(referral) => {
                Err(Error::unfit(&**referral.path, "its data is on an extra device, which the build does not read"))
            }
            Self::Stored { image, nid, .. } => {
                let origin = Origin::Image(image, *nid);
                Ok(OpenContent { content: self, origin, identity: None, has_holes: false })
            }
        }
    }
}

/// The ranges of an open file up to `size` that have data; as [`Content::data_ranges`].
pub(crate) fn data_ranges(file: &File, size: u64, unit: u64) -> rustix::io::Result<Vec<Range<u64>>> {
    DataRanges::found_by(size, unit, |offset, target| {
        let from = match target {
            SeekTarget::Data => SeekFrom::Data(offset),
            SeekTarget::Hole => SeekFrom::Hole(offset),
        };
        seek(file, from)
    })
}

/// The ranges of a file in an image that have data; as [`Content::data_ranges`].
fn image_data_ranges(image: &SourceImage, nid: Nid, size: u64, unit: u64) -> Result<Vec<Range<u64>>> {
    let found = DataRanges::found_by(size, unit, |offset, target| {
        image.file_system().seek(nid, offset, target).map(|found| found.or(Some(u64::MAX)))
    });
    found.map_err(image.failed(Path::new("")))
}

/// Seeks data or a hole; `None` if the file system does not support holes.
fn seek(file: &File, from: SeekFrom) -> rustix::io::Result<Option<u64>> {
    match rustix::fs::seek(file, from) {
        // Only a hole follows.
        Err(Errno::NXIO) => Ok(Some(u64::MAX)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
        result => result.map(Some),
    }
}

/// Disjoint ranges of a file of this size, aligned to the unit or ending with the file.
struct DataRanges {
    size: u64,
    unit: u64,
    found: Vec<Range<u64>>,
}

impl DataRanges {
    fn new(size: u64, unit: u64) -> Self {
        Self { size, unit, found: Vec::new() }
    }

    /// The ranges that `seek` finds. It returns `None` if holes cannot be found, and a place behind the end if there is
    /// nothing more.
    fn found_by<E>(
        size: u64,
        unit: u64,
        mut seek: impl FnMut(u64, SeekTarget) -> std::result::Result<Option<u64>, E>,
    ) -> std::result::Result<Vec<Range<u64>>, E> {
        let mut ranges = Self::new(size, unit);
        let mut at = 0;
        while at < size {
            let data = seek(at, SeekTarget::Data)?.unwrap_or(at).max(at);
            if data >= size {
                break;
            }
            let end = seek(data, SeekTarget::Hole)?.unwrap_or(size).clamp(data + 1, size);
            // A unit with any data counts as data.
            at = ranges.add(data, end);
        }
        Ok(ranges.found)
    }

    /// Adds a range that does not begin before earlier ones; returns where the next one may begin.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let start = start / self.unit * self.unit;
        let end = end.checked_next_multiple_of(self.unit).unwrap_or(self.size).min(self.size);
        match self.found.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => self.found.push(start..end),
        }
        end
    }
}

/// Content that is open for reading.
pub(crate) struct OpenContent<'a> {
    content: &'a Content,
    origin: Origin<'a>,
    identity: Option<Identity>,
    /// Whether there may be holes, which need not be read.
    has_holes: bool,
}

enum Origin<'a> {
    File(File),
    SharedFile(&'a File),
    Image(&'a SourceImage, Nid),
}

impl OpenContent<'_> {
    /// Fills `output` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        match self.content {
            Content::Listed { .. } if self.has_holes => self.read_data(offset, output),
            Content::Listed { .. } | Content::Stored { .. } | Content::Referred(_) => self.read_raw(offset, output),
            Content::Region { offset: start, .. } => self.read_raw(start.saturating_add(offset), output),
            Content::Sparse { runs, .. } => self.read_sparse(runs, offset, output),
        }
    }

    fn read_sparse(&self, runs: &[Run], offset: u64, output: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(output.len() as u64);
        output.fill(0);
        let first = runs.partition_point(|run| run.offset + run.len <= offset);
        for run in runs[first..].iter().take_while(|run| run.offset < end) {
            let (from, to) = (run.offset.max(offset), (run.offset + run.len).min(end));
            let index = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            self.read_raw(run.position + (from - run.offset), &mut output[index(from)..index(to)])?;
        }
        Ok(())
    }

    /// Reads a file and skips its holes.
    fn read_data(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(output.len() as u64);
        let index = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
        let mut at = offset;
        while at < end {
            let data = self.seek(SeekFrom::Data(at))?.unwrap_or(at).clamp(at, end);
            output[index(at)..index(data)].fill(0);
            if data == end {
                break;
            }
            // If a hole begins at `data`, a program has punched it meanwhile. Reading it returns zeros, which is right
            // too.
            let hole = self.seek(SeekFrom::Hole(data))?.unwrap_or(end).clamp(data + 1, end);
            self.read_raw(data, &mut output[index(data)..index(hole)])?;
            at = hole;
        }
        Ok(())
    }

    fn seek(&self, from: SeekFrom) -> Result<Option<u64>> {
        let Some(file) = self.file() else { return Ok(None) };
        seek(file, from).map_err(|error| Error::source(self.content.path(), "read")(error.into()))
    }

    fn read_raw(&self, start: u64, output: &mut [u8]) -> Result<()> {
        let file = match &self.origin {
            Origin::File(file) => file,
            Origin::SharedFile(file) => file,
            Origin::Image(image, nid) => return image.read_exact_at(*nid, start, output),
        };
        file.read_exact_at(output, start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if self.identity.is_some() => Error::Changed { path: self.content.path() },
            _ => Error::source(self.content.path(), "read")(error),
        })
    }

    /// Fails if the file was replaced or changed since it was listed.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let (Some(identity), Some(file)) = (self.identity, self.file()) else { return Ok(()) };
        match Identity::of_file(file) {
            Ok(now) if now == identity => Ok(()),
            Ok(_) => Err(Error::Changed { path: self.content.path() }),
            Err(error) => Err(Error::source(self.content.path(), "look at")(error)),
        }
    }

    fn file(&self) -> Option<&File> {
        match &self.origin {
            Origin::File(file) => Some(file),
            Origin::SharedFile(file) => Some(file),
            Origin::Image(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, env::consts::ARCH, thread};

    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };

    use super::*;
    use crate::tree::{Node, source_root::SourceRoot};

    #[test]
    fn nodes_are_small() {
        assert!(size_of::<Content>() <= 40 && size_of::<Node>() <= 80, "{}", size_of::<Node>());
    }

    /// A file with holes, as it was listed, and its bytes.
    fn sparse(folder: &Path) -> (Content, Vec<u8>) {
        let file = File::create(folder.join("file")).expect("there is room");
        let len = 40_000_123;
        file.set_len(len).expect("there is room");
        let mut expected = vec![0; usize::try_from(len).expect("it is small")];
        for (offset, part_len) in [(0, 5), (1_000_000, 70_000), (9_999_999, 3), (30_000_000, 1 << 20)] {
            let bytes = &mut expected[offset..offset + part_len];
            bytes.fill(7);
            file.write_all_at(bytes, offset as u64).expect("there is room");
        }
        let status = rustix::fs::fstat(&file).expect("it is there");
        let root = Arc::new(SourceRoot::open(folder).expect("it is there"));
        let (directory, mut names) = ListedDirectory::new(root, Path::new(""), &["file".into()]);
        let (directory, name) = (Arc::new(directory), names.next().expect("it has a name"));
        let (identity, allocated) = (Identity::of(&status), AllocatedLen::of_blocks(status.st_blocks));
        (Content::Listed { directory, name, identity, allocated }, expected)
    }

    /// Compares what is read from some places of a file with its bytes.
    fn compare(content: &Content, expected: &[u8]) {
        let open = content.open().expect("it is there");
        assert!(open.has_holes, "the file system of temporary files has no holes");
        for (start, end) in [(0, expected.len()), (3, 2_000_000), (1_000_001, 1_000_002), (31_048_576, 40_000_123)] {
            let mut found = vec![1; end - start];
            open.read_at(start as u64, &mut found).expect("it can be read");
            assert!(found == expected[start..end], "bytes {start} to {end}");
        }
    }

    /// Lets `lseek` fail with this error when this thread seeks data or holes.
    fn refuse_seeks(error: Errno) {
        let rule = |whence: u64| {
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, whence)
                .and_then(|condition| SeccompRule::new(vec![condition]))
                .expect("it is valid")
        };
        // SEEK_DATA and SEEK_HOLE.
        let rules = BTreeMap::from([(libc::SYS_lseek, vec![rule(3), rule(4)])]);
        let refused = SeccompAction::Errno(error.raw_os_error().unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, ARCH.try_into().expect("it is known"));
        let program = BpfProgram::try_from(filter.expect("it is valid")).expect("it is short");
        seccompiler::apply_filter(&program).expect("the kernel has filters");
    }

    #[test]
    fn files_are_read_where_holes_cannot_be_found() {
        let folder = tempfile::tempdir().expect("there is room");
        let (content, expected) = sparse(folder.path());
        for error in [Errno::INVAL, Errno::OPNOTSUPP] {
            thread::scope(|scope| {
                let read = scope.spawn(|| {
                    refuse_seeks(error);
                    let open = content.open().expect("it is there");
                    assert_eq!(rustix::fs::seek(open.file().expect("it is a file"), SeekFrom::Data(0)), Err(error));
                    let ranges = content.data_ranges(1 << 20).expect("it can be read");
                    assert_eq!(ranges, std::slice::from_ref(&(0..content.size())));
                    compare(&content, &expected);
                });
                read.join().expect("it is equal");
            });
        }
    }

    #[test]
    fn holes_read_as_zeros() {
        let folder = tempfile::tempdir().expect("there is room");
        let (content, expected) = sparse(folder.path());
        for (unit, ranges) in [
            (1 << 20, &[0..2 << 20, 9 << 20..10 << 20, 28 << 20..30 << 20][..]),
            (1 << 24, &[0..1 << 24, 1 << 24..2 << 24]),
            (1 << 26, std::slice::from_ref(&(0..content.size()))),
        ] {
            let found = content.data_ranges(unit).expect("it can be read");
            let covered =
                |range: &Range<u64>| found.iter().any(|data| data.start <= range.start && range.end <= data.end);
            assert!(ranges.iter().all(covered), "{unit}: {found:?}");
            let found_len: u64 = found.iter().map(|range| range.end - range.start).sum();
            assert!(found_len <= unit * 6, "{unit}: {found:?}");
        }
        compare(&content, &expected);
    }
}
