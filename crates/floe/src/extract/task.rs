//! Tasks for the workers of an extraction, and the pieces into which they divide files.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use floe_sync::{Mutex, MutexGuard};

use super::tree::{Identity, TreeDirectory};
use crate::{Attr, ByteRange, Extent, ExtentData, FileSystem, FileType, Image, Nid};

/// A file of at least this many bytes is written in parts, by several workers.
pub(super) const LARGE_FILE_BYTES: u64 = 2 * PART_BYTES;

/// The size of such a part, in bytes.
pub(super) const PART_BYTES: u64 = 8 << 20;

/// A task ends once its files together have this many bytes, unless the next file shares a block with them.
const TASK_BYTES: u64 = 1 << 20;

/// The same limit for files that share a block. Beyond it, parallel work is worth another decode of the block.
const SHARED_TASK_BYTES: u64 = 64 << 20;

/// The maximum number of files in a task.
const TASK_FILES_MAX: usize = 64;

/// The same for files that share a block.
const SHARED_TASK_FILES_MAX: usize = 16_384;

/// The maximum number of copies of an inode to which further names are linked.
const CREATED_NAMES_MAX: usize = 4;

/// An entry to create that is not a directory.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) directory: Arc<TreeDirectory>,
    pub(super) name: Box<[u8]>,
    pub(super) attr: Attr,
    /// Where the first bytes of the entry are stored.
    pub(super) position: Position,
    /// Shared by all names of an inode that has several.
    pub(super) names: Option<Arc<CreatedNames>>,
}

/// The names under which this extraction created an inode that has several. Further names become hard links to one of
/// them, or copies where that is impossible.
#[derive(Default, Debug)]
pub(super) struct CreatedNames(Mutex<Created>);

#[derive(Default, Debug)]
struct Created {
    /// One name of each copy, at most [`CREATED_NAMES_MAX`]; the latest is last.
    names: Vec<Arc<CreatedName>>,
    /// The number of created copies.
    count: usize,
    is_impossible: bool,
}

/// A name under which this extraction created an inode.
#[derive(Debug)]
pub(super) struct CreatedName {
    pub(super) directory: Arc<TreeDirectory>,
    pub(super) name: Box<[u8]>,
    pub(super) identity: Identity,
}

/// Where the first bytes of a file are stored. Sorts in the order in which reading is cheap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Position {
    device: u16,
    offset: u64,
    /// Whether other files may need the same block.
    is_block: bool,
}

/// A large file that several workers write.
#[derive(Debug)]
pub(super) struct LargeFile {
    pub(super) item: Item,
    pub(super) progress: Mutex<LargeFileProgress>,
    pub(super) has_failed: AtomicBool,
    /// The number of workers that have not finished with the file yet.
    pub(super) workers_left: AtomicUsize,
}

/// The progress of a large file.
#[derive(Default, Debug)]
pub(super) struct LargeFileProgress {
    pub(super) file: Option<Arc<File>>,
    /// The start of the bytes that no worker has taken yet.
    pub(super) next: u64,
}

/// A unit of work for a worker.
#[derive(Debug)]
pub(super) enum Task {
    /// Create these entries, one after the other.
    Items(Vec<Item>),
    /// Write parts of a large file until none is left. Each worker gets this task.
    Parts(Arc<LargeFile>),
}

/// A special file that was created.
pub(super) struct SpecialFile {
    pub(super) directory: Arc<TreeDirectory>,
    pub(super) name: Box<[u8]>,
    pub(super) attr: Attr,
}

impl Item {
    pub(super) fn path(&self) -> Vec<u8> {
        self.directory.path_of(&self.name)
    }

    /// The identity that `find` returns, if the inode has further names, which need it.
    pub(super) fn identity(&self, find: impl FnOnce() -> rustix::io::Result<Identity>) -> Option<Identity> {
        self.names.as_ref().and_then(|_| find().ok())
    }

    fn bytes(&self) -> u64 {
        if self.attr.file_type == FileType::Regular { self.attr.size } else { 0 }
    }
}

impl CreatedNames {
    /// Records that the inode was created. Without a `name`, no other name can become a link to it.
    pub(super) fn add(&self, name: Option<CreatedName>) {
        let mut created = self.lock();
        created.count += 1;
        created.is_impossible |= name.is_none() && created.names.is_empty();
        if created.names.len() == CREATED_NAMES_MAX {
            created.names.remove(0);
        }
        created.names.extend(name.map(Arc::new));
    }

    /// Records that the inode cannot be extracted under any name.
    pub(super) fn give_up(&self) {
        self.lock().is_impossible = true;
    }

    /// The names to which another one can become a link; `None` if no name could be created.
    pub(super) fn created(&self) -> Option<Vec<Arc<CreatedName>>> {
        let created = self.lock();
        (!created.names.is_empty() || !created.is_impossible).then(|| created.names.clone())
    }

    /// The number of created copies.
    pub(super) fn count(&self) -> usize {
        self.lock().count
    }

    fn lock(&self) -> MutexGuard<'_, Created> {
        self.0.lock()
    }
}

impl Position {
    /// Looks up where the first bytes of a file are stored. Errors are ignored here, because reading the file reports
    /// them.
    pub(super) fn of(image: &Image, attr: &Attr) -> Self {
        if attr.file_type != FileType::Regular || attr.size == 0 {
            return Self::default();
        }
        let mut extents = Vec::new();
        if image.file_system().map(attr.nid, ByteRange::new(0, 1), &mut extents).is_err() {
            return Self::default();
        }
        match extents.first().map(|extent| extent.data) {
            None | Some(ExtentData::Hole) => Self::default(),
            Some(ExtentData::Plain { device, offset }) => Self { device: device.0, offset, is_block: false },
            Some(ExtentData::Encoded { block, .. }) => {
                Self { device: block.device.0, offset: block.offset, is_block: true }
            }
        }
    }
}

/// Sorts `items` by storage order and passes them to `give` as tasks. Files that share a block are in the same task.
pub(super) fn tasks(mut items: Vec<Item>, jobs: usize, mut give: impl FnMut(Task)) {
    items.sort_by_key(|item| item.position);
    let mut task: Vec<Item> = Vec::new();
    let mut bytes = 0u64;
    for item in items {
        if item.bytes() >= LARGE_FILE_BYTES {
            if !task.is_empty() {
                give(Task::Items(std::mem::take(&mut task)));
                bytes = 0;
            }
            give_parts(item, jobs, &mut give);
            continue;
        }
        let shares = item.position.is_block && task.last().is_some_and(|last| last.position == item.position);
        let (bytes_max, files_max) =
            if shares { (SHARED_TASK_BYTES, SHARED_TASK_FILES_MAX) } else { (TASK_BYTES, TASK_FILES_MAX) };
        if bytes >= bytes_max || task.len() >= files_max {
            give(Task::Items(std::mem::take(&mut task)));
            bytes = 0;
        }
        bytes += item.bytes();
        task.push(item);
    }
    if !task.is_empty() {
        give(Task::Items(task));
    }
}

fn give_parts(item: Item, jobs: usize, give: &mut impl FnMut(Task)) {
    let file = Arc::new(LargeFile {
        item,
        progress: Mutex::default(),
        has_failed: AtomicBool::default(),
        workers_left: AtomicUsize::new(jobs),
    });
    for _ in 0..jobs {
        give(Task::Parts(Arc::clone(&file)));
    }
}

/// The maximum number of bytes in one read.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// The number of bytes of a file that one step maps.
const MAP_BYTES: u64 = 16 << 20;

/// Returns the next run of data in `range` of a file, of at most `len_max` bytes. Returns `None` if the rest is a hole,
/// or once `is_over` returns true.
///
/// # Errors
/// The map cannot be read or breaks the format.
pub(super) fn next_data(
    file_system: &dyn FileSystem,
    nid: Nid,
    range: ByteRange,
    len_max: u64,
    extents: &mut Vec<Extent>,
    is_over: impl Fn() -> bool,
) -> floe_image::Result<Option<ByteRange>> {
    let mut position = range.offset();
    while position < range.end() && !is_over() {
        let step = ByteRange::new(position, MAP_BYTES).intersection(range);
        extents.clear();
        file_system.map(nid, step, extents)?;
        for extent in extents.iter() {
            if extent.data != ExtentData::Hole && extent.range.end() > position {
                let start = extent.range.offset().max(position);
                return Ok(Some(ByteRange::new(start, len_max).intersection(range)));
            }
        }
        position = extents.last().map_or(step.end(), |last| last.range.end()).max(step.end());
    }
    Ok(None)
}

/// Passes the pieces of `extents` within `range` that contain data to `give`. Pieces end at block boundaries where
/// possible, so that a block is decoded directly into its piece.
pub(super) fn pieces(range: ByteRange, extents: &[Extent], mut give: impl FnMut(ByteRange) -> bool) {
    let mut piece = ByteRange::new(range.offset(), 0);
    for extent in extents {
        let wanted = extent.range.intersection(range);
        let is_data = extent.data != ExtentData::Hole && !wanted.is_empty();
        let fits = piece.end() == wanted.offset() && piece.len() + wanted.len() <= PIECE_BYTES;
        if is_data && fits {
            piece = ByteRange::between(piece.offset(), wanted.end());
            continue;
        }
        if !piece.is_empty() && !give(piece) {
            return;
        }
        piece = if is_data { wanted } else { ByteRange::new(wanted.end(), 0) };
        while piece.len() > PIECE_BYTES {
            if !give(ByteRange::new(piece.offset(), PIECE_BYTES)) {
                return;
            }
            piece = ByteRange::between(piece.offset() + PIECE_BYTES, piece.end());
        }
    }
    if !piece.is_empty() {
        give(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::DeviceId;

    const DATA: ExtentData = ExtentData::Plain { device: DeviceId(0), offset: 0 };
    const MIB: u64 = 1 << 20;

    #[test]
    fn pieces_leave_out_holes_and_keep_blocks_whole() {
        let extent = |offset, end, data| Extent { range: ByteRange::between(offset, end), data };
        for (name, range, extents, expected) in [
            ("nothing", (0, 0), vec![], vec![]),
            ("one", (0, 10), vec![extent(0, 10, DATA)], vec![(0, 10)]),
            (
                "hole",
                (0, 30),
                vec![extent(0, 10, DATA), extent(10, 20, ExtentData::Hole), extent(20, 30, DATA)],
                vec![(0, 10), (20, 30)],
            ),
            ("joined", (0, 20), vec![extent(0, 10, DATA), extent(10, 20, DATA)], vec![(0, 20)]),
            ("cut at the range", (5, 12), vec![extent(0, 10, DATA), extent(10, 20, DATA)], vec![(5, 12)]),
            (
                "whole blocks",
                (0, 2 * MIB),
                vec![extent(0, MIB - 1, DATA), extent(MIB - 1, 2 * MIB, DATA)],
                vec![(0, MIB - 1), (MIB - 1, 2 * MIB - 1), (2 * MIB - 1, 2 * MIB)],
            ),
            (
                "large",
                (0, 2 * MIB + 1),
                vec![extent(0, 2 * MIB + 1, DATA)],
                vec![(0, MIB), (MIB, 2 * MIB), (2 * MIB, 2 * MIB + 1)],
            ),
            ("only a hole", (0, 9), vec![extent(0, 9, ExtentData::Hole)], vec![]),
        ] {
            let mut given = Vec::new();
            pieces(ByteRange::between(range.0, range.1), &extents, |piece| {
                given.push((piece.offset(), piece.end()));
                true
            });
            assert_eq!(given, expected, "{name}");
        }
    }
}
