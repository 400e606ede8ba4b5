//! A million inodes: the time to open the image, and the memory for a walk.

mod support;

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_erofs::Erofs;
use floe_front::{Origin, VirtualImage, keep};
use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DeviceId, DeviceNumber, DirectoryCursor, Dirent, Error, Extent,
    ExtentData, FileSystem, FileSystemInfo, FileType, Nid, Outline, Place, Result, SeekTarget, Timestamp,
};
use floe_testkit::{CountingAllocator, DirectReader, MemorySource};
use support::{BLOCK, DirectFile};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Locked by the running test, because the allocator counts for all tests.
static ALONE: Mutex<()> = Mutex::new(());

const ROOT: Nid = Nid(1);

/// A file system without an image: directories in the root, each with as many files of one block.
struct Grid {
    directory_count: u64,
    files_per_directory: u64,
    /// Whether the first files of each directory are replaced by the root and by the first directory.
    has_cycles: bool,
    /// Whether the names of the files are in the opposite order of their inodes.
    is_reversed: bool,
    /// The numbers of visited entries, of requested inodes and of requested parents.
    visited: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    parents_asked: Arc<AtomicU64>,
}

impl Grid {
    fn new(directory_count: u64, files_per_directory: u64) -> Arc<Self> {
        Arc::new(Self::with_cycles(directory_count, files_per_directory, false))
    }

    fn with_cycles(directory_count: u64, files_per_directory: u64, has_cycles: bool) -> Self {
        let (visited, asked, parents_asked) = Default::default();
        let is_reversed = false;
        Self { directory_count, files_per_directory, has_cycles, is_reversed, visited, asked, parents_asked }
    }

    fn directory(&self, index: u64) -> Nid {
        Nid(ROOT.0 + 1 + index)
    }

    /// The parent directory of a file.
    fn directory_of(&self, nid: Nid) -> Option<u64> {
        let past = nid.0.checked_sub(self.directory(self.directory_count).0)?;
        Some(past / self.files_per_directory).filter(|directory| *directory < self.directory_count)
    }

    fn is_directory(&self, nid: Nid) -> bool {
        nid >= ROOT && nid < self.directory(self.directory_count)
    }
}

impl FileSystem for Grid {
    fn with_reader(self: Arc<Self>, _reader: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        self
    }

    fn root(&self) -> Nid {
        ROOT
    }

    fn info(&self) -> FileSystemInfo {
        FileSystemInfo {
            format: "grid",
            magic: 0,
            block_size: 4096,
            block_count: 1,
            inode_count: self.inode_number_max(),
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
        self.asked.fetch_add(1, Relaxed);
        let (file_type, size) = match self.is_directory(nid) {
            true => (FileType::Directory, 1 << 20),
            false if self.directory_of(nid).is_some() => (FileType::Regular, 1 + nid.0 % 4096),
            false => return Err(Error::corrupt("no such inode", Place::inode(nid))),
        };
        Ok(Attr {
            nid,
            inode_number: nid.0,
            file_type,
            permissions: 0o755,
            uid: 1,
            gid: 2,
            size,
            link_count: 1,
            modified: Timestamp::default(),
            device: DeviceNumber::default(),
            blocks_512: 8,
        })
    }

    fn nid_of(&self, inode_number: u64) -> Option<Nid> {
        Some(Nid(inode_number))
    }

    fn inode_number_max(&self) -> u64 {
        self.directory_count * (1 + self.files_per_directory) + 1
    }

    fn outline(&self, nid: Nid) -> Result<Outline> {
        Ok(Outline { attr: self.attr(nid)?, may_have_xattrs: false, hole_alignment: None, directory_block: None })
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        assert!(self.is_directory(directory) && name == b"..", "only parents are looked up");
        self.parents_asked.fetch_add(1, Relaxed);
        Ok(Some(ROOT))
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (count, first) = match directory {
            ROOT => (self.directory_count, self.directory(0)),
            _ => {
                let index = directory.0 - self.directory(0).0;
                let first = self.directory(self.directory_count).0 + index * self.files_per_directory;
                (self.files_per_directory, Nid(first))
            }
        };
        for index in cursor.0..count {
            self.visited.fetch_add(1, Relaxed);
            let nid = match index {
                0 if self.has_cycles && directory != ROOT => ROOT,
                1 if self.has_cycles && directory != ROOT => self.directory(0),
                _ if self.is_reversed && directory != ROOT => Nid(first.0 + count - 1 - index),
                _ => Nid(first.0 + index),
            };
            let file_type = if self.is_directory(nid) { FileType::Directory } else { FileType::Regular };
            let (name, next) = (format!("entry-{index:08}"), DirectoryCursor(index + 1));
            if visit(Dirent { name: name.as_bytes(), nid, inode_number: nid.0, file_type, next }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        Err(Error::WrongType { expected: "a symbolic link", nid })
    }

    fn xattr(&self, _nid: Nid, _name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _nid: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let size = self.attr(nid)?.size;
        let range = range.intersection(ByteRange::new(0, size));
        if !range.is_empty() {
            extents.push(Extent { range, data: ExtentData::Plain { device: DeviceId(0), offset: range.offset() } });
        }
        Ok(())
    }

    fn seek(&self, _nid: Nid, _offset: u64, _target: SeekTarget) -> Result<Option<u64>> {
        unreachable!("the files have no holes")
    }
}

fn open(grid: &Arc<Grid>) -> (Arc<DirectReader>, Arc<VirtualImage>) {
    let reader = Arc::new(DirectReader::of(vec![7; BLOCK]));
    let blocks: Arc<dyn BlockReader> = Arc::clone(&reader) as _;
    let image = VirtualImage::open(Arc::clone(grid) as _, &blocks, Arc::clone(&blocks)).expect("it is opened");
    (reader, Arc::new(image))
}

/// Opens the virtual image of a grid.
fn open_erofs(grid: &Arc<Grid>) -> Erofs {
    let (reader, image) = open(grid);
    let file = Arc::new(DirectFile::new(&reader, &image));
    let sources = vec![file as _, Arc::new(MemorySource::new(Vec::new())) as _];
    support::open_erofs(sources).expect("it is opened").1
}

#[test]
fn opening_costs_the_same_for_a_million_inodes() {
    let _alone = ALONE.lock();
    let mut counts = Vec::new();
    for (directory_count, files_per_directory) in [(10, 9), (1000, 1000)] {
        let grid = Grid::new(directory_count, files_per_directory);
        let (reader, image) = open(&grid);
        let mut superblock = vec![0; BLOCK];
        DirectFile::new(&reader, &image).read(0, &mut superblock).expect("it is rendered");
        counts.push((grid.asked.load(Relaxed), grid.visited.load(Relaxed)));
    }
    assert_eq!(counts[0], counts[1]);
    assert!(counts[1].0 < 10, "{counts:?}");
}

#[test]
fn a_walk_of_a_million_inodes_keeps_less_than_32_mib() {
    let _alone = ALONE.lock();
    let grid = Grid::new(1000, 1000);
    let before = ALLOCATOR.live_bytes();
    let (reader, image) = open(&grid);
    let file = Arc::new(DirectFile::new(&reader, &image));
    let (inner, erofs) = support::open_erofs(vec![Arc::clone(&file) as _, Arc::new(MemorySource::new(Vec::new()))])
        .expect("it is opened");
    let mut pending = vec![erofs.root()];
    let (mut inodes, mut bytes_read) = (0u64, 0u64);
    while let Some(nid) = pending.pop() {
        inodes += 1;
        let attr = erofs.attr(nid).expect("it is read");
        if attr.file_type == FileType::Directory {
            let listed = erofs.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                if dirent.name != b"." && dirent.name != b".." {
                    pending.push(dirent.nid);
                }
                ControlFlow::Continue(())
            });
            listed.expect("it is listed");
        } else if inodes.is_multiple_of(1000) {
            let read = inner.read_file(&erofs, nid, ByteRange::new(0, attr.size)).expect("it is read");
            assert!(read.iter().all(|byte| *byte == 7));
            bytes_read += read.len() as u64;
        }
    }
    assert_eq!(inodes, 1 + 1000 + 1_000_000);
    assert!(bytes_read > 1_000_000, "{bytes_read}");
    drop(pending);
    let kept = ALLOCATOR.live_bytes().saturating_sub(before);
    assert!(kept < 32 << 20, "{kept} bytes");
}

#[test]
fn keeping_a_million_inodes_takes_less_than_32_mib_of_memory_and_100_bytes_a_name() {
    let _alone = ALONE.lock();
    let file = tempfile::tempfile().expect("a file");
    let (before, mut most) = (ALLOCATOR.live_bytes(), 0);
    let mut pace = || {
        most = most.max(ALLOCATOR.live_bytes().saturating_sub(before));
        ControlFlow::Continue(())
    };
    keep(Grid::new(1000, 1000), None, &file, &[1; 32], 1 << 30, &mut pace).expect("it is kept");
    assert!(most < 32 << 20, "{most} bytes");
    let len = file.metadata().expect("it is there").len();
    assert!(len < 100 * 1_001_001, "{len} bytes");
}

#[test]
fn a_block_of_a_huge_directory_does_not_need_the_others() {
    let _alone = ALONE.lock();
    let grid = Grid::new(1, 1_000_000);
    let erofs = open_erofs(&grid);
    let before = ALLOCATOR.live_bytes();
    let wide = erofs.lookup(erofs.root(), b"entry-00000000").expect("it is read").expect("it is there");
    let size = erofs.attr(wide).expect("it is read").size;
    let visited = grid.visited.load(Relaxed);
    let found = erofs.lookup(wide, b"entry-00765432").expect("it is read").expect("it is there");
    assert_eq!(erofs.attr(found).expect("it is read").size, 1 + (3 + 765_432) % 4096);
    let (visited, blocks) = (grid.visited.load(Relaxed) - visited, u64::from(size.div_ceil(BLOCK as u64).ilog2()) + 2);
    // A block has some 150 entries.
    assert!(visited < blocks * 400, "{visited} entries are visited for {blocks} blocks");
    let kept = ALLOCATOR.live_bytes().saturating_sub(before);
    assert!(kept < 1 << 20, "{kept} bytes");
}

#[test]
fn a_listing_does_not_read_the_directories_in_it() {
    let _alone = ALONE.lock();
    let grid = Grid::new(1000, 1000);
    let erofs = open_erofs(&grid);
    let mut entry_count = 0;
    let listed = erofs.read_dir(erofs.root(), DirectoryCursor::default(), &mut |_| {
        entry_count += 1;
        ControlFlow::Continue(())
    });
    listed.expect("it is listed");
    assert_eq!((entry_count, grid.parents_asked.load(Relaxed)), (2 + 1000, 0));
}

#[test]
fn a_directory_stands_in_one_directory_only() {
    let _alone = ALONE.lock();
    let grid = Arc::new(Grid::with_cycles(3, 4, true));
    let erofs = open_erofs(&grid);
    let (mut pending, mut directories, mut placeholders, mut files) = (vec![erofs.root()], 0, 0, 0);
    while let Some(nid) = pending.pop() {
        assert!(directories + placeholders < 100, "the walk does not end");
        let attr = erofs.attr(nid).expect("it is read");
        if attr.file_type != FileType::Directory {
            files += 1;
        } else if attr.permissions == 0 {
            placeholders += 1;
        } else {
            directories += 1;
            let listed = erofs.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                if dirent.name != b"." && dirent.name != b".." {
                    pending.push(dirent.nid);
                }
                ControlFlow::Continue(())
            });
            listed.expect("it is listed");
        }
    }
    assert_eq!((directories, placeholders, files), (1 + 3, 3 * 2, 3 * 2));
}

#[test]
fn data_stands_in_the_order_of_the_names() {
    let _alone = ALONE.lock();
    let grid = Arc::new(Grid { is_reversed: true, ..Grid::with_cycles(1, 1000, false) });
    let (_reader, image) = open(&grid);
    image.render(grid.directory(0)).expect("it is listed");
    let nids = (0..1000).rev().map(|index| Nid(grid.directory(1).0 + index));
    // Inodes that are rendered in another order change nothing.
    nids.clone().rev().for_each(|nid| image.render(nid).expect("it is rendered"));
    let place = |nid| image.place(Origin { nid, offset: 0 }).expect("it is read").expect("it has an address");
    let places: Vec<u64> = nids.map(place).collect();
    assert!(places.is_sorted_by(|place, next| place + BLOCK as u64 == *next), "{places:?}");
}
