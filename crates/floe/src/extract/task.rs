//! What workers are given to do.

use std::{
    fs::File,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use super::tree::TreeDirectory;
use crate::{Attr, ByteRange, ExtentData, FileType, Image};

/// A file of at least this many bytes is written in parts, by several workers.
pub(super) const LARGE_FILE_BYTES: u64 = 2 * PART_BYTES;

/// The size of such a part.
pub(super) const PART_BYTES: u64 = 8 << 20;

/// A task ends once its files together have this many bytes, unless the next file shares a block with them.
const TASK_BYTES: u64 = 1 << 20;

/// The same for files that share a block: at some point sharing the work is worth another decode.
const SHARED_TASK_BYTES: u64 = 64 << 20;

/// How many files a task holds.
const TASK_FILES_MAX: usize = 64;

/// The same for files that share a block.
const SHARED_TASK_FILES_MAX: usize = 16_384;

/// Something that is to be made: anything but a directory.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) directory: Arc<TreeDirectory>,
    pub(super) name: Box<[u8]>,
    pub(super) attr: Attr,
    /// Where its first bytes are stored.
    pub(super) position: Position,
}

/// Where the first bytes of a file are stored; in the order in which reading is cheap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Position {
    device: u16,
    offset: u64,
    /// Whether others may need the same block.
    is_block: bool,
}

/// A large file that several workers write.
#[derive(Debug)]
pub(super) struct LargeFile {
    pub(super) item: Item,
    pub(super) progress: Mutex<LargeFileProgress>,
    pub(super) has_failed: AtomicBool,
    /// How many workers have not left it yet.
    pub(super) workers_left: AtomicUsize,
}

/// How far a large file is.
#[derive(Default, Debug)]
pub(super) struct LargeFileProgress {
    pub(super) file: Option<Arc<File>>,
    /// What no worker has taken yet begins here.
    pub(super) next: u64,
}

/// What a worker is given to do at a time.
#[derive(Debug)]
pub(super) enum Task {
    /// Make these, one after the other.
    Items(Vec<Item>),
    /// Write parts of a large file until there is none left. As many workers get this as there are.
    Parts(Arc<LargeFile>),
}

/// A further name of something that was made under another.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) directory: Arc<TreeDirectory>,
    pub(super) name: Box<[u8]>,
    pub(super) first: (Arc<TreeDirectory>, Box<[u8]>),
    pub(super) file_type: FileType,
}

impl Item {
    pub(super) fn path(&self) -> Vec<u8> {
        self.directory.path_of(&self.name)
    }

    fn bytes(&self) -> u64 {
        if self.attr.file_type == FileType::Regular { self.attr.size } else { 0 }
    }
}

impl Position {
    /// Where the first bytes of a file are stored. A fault is left for the reading to find.
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

/// Gives `items`, ordered by where they are stored, as tasks. Files that share a block come in one task.
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
