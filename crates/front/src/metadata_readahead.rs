//! Readahead of rendered metadata.
//!
//! The kernel reads metadata page by page, each in a request of its own. If requests follow an order, the next blocks are
//! stored in the page cache before the kernel asks for them. There are three orders:
//!
//! - *Along the image*: blocks of one directory, in the order of their addresses. Listings are read in this order.
//! - *Along the listings*: inode blocks with several inodes, in the order of the entries of the directories that were listed.
//!   `ls -l` reads in this order. Names and inodes are often in different orders, so each batch of blocks is sorted:
//!   neighbours are then stored together.
//! - *Along the tree*: the inode blocks of directories, each directory before its subdirectories, in the order of their
//!   listings. `find` reads in this order.
//!
//! In each order, blocks are read ahead in windows. The first block of a window, its marker, is not read ahead. When the
//! kernel asks for it, the reader has reached this window: the next one, of twice the size, is then read ahead while the
//! reader uses the rest of this one. A window that ends where the known listings end has no marker: the first request for the
//! next listing continues the run. So the windows stay small if the blocks are not used, and a reader in order waits for few
//! requests.

mod runs;

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    ops::Range,
};

use floe_image::DIRECTORY_DEPTH_MAX;
use floe_sync::Mutex;

use self::runs::{Runs, WINDOW_MAX, WINDOW_MIN};

/// The maximum number of blocks at the start of a listing that the kernel may have already, because directories share blocks.
const SKIPPED_MAX: u64 = 2;

/// The maximum number of unlisted blocks between two listed ones that are read ahead with them. Rendering them takes less time
/// than another notification.
const GAP_BLOCKS_MAX: u64 = 1;

/// The number of blocks that are left to a reader that has overtaken its readahead.
const LEAD_BLOCKS: u64 = 4;

/// The maximum number of blocks that are read ahead at a time.
const STEP_BLOCKS: u64 = 16;

/// The maximum number of listed blocks that are sorted and read ahead together.
const BATCH_BLOCKS: u64 = 64;

/// The number of blocks with inodes that are remembered in the order of listings.
const LISTED_MAX: usize = 1 << 16;

/// The maximum number of directories whose places in the tree are known at a time.
const PLACES_MAX: usize = 1 << 16;

/// The maximum number of directories with known listings and of the subdirectories in these listings, together. Directories of
/// corrupt images can list one subdirectory very often.
const KNOWN_MAX: usize = 2 * PLACES_MAX;

/// The maximum number of walks along the tree that are followed at a time.
const WALKS_MAX: usize = 16;

/// The number of directories remembered that the kernel asked for last. They are not read ahead.
const DEMANDED_MAX: usize = 64;

/// The orders in which metadata is being read.
#[derive(Default)]
pub(crate) struct MetadataReadahead {
    runs: Mutex<Runs>,
    listed: Mutex<Listed>,
    tree: Mutex<Tree>,
}

/// The blocks to read ahead in a run: numbers of blocks along the image, positions along the listings.
#[derive(Debug)]
pub(crate) struct Ahead {
    is_listed: bool,
    run: u64,
    range: Range<u64>,
    /// Listed blocks whose positions are before `range`, in contiguous parts.
    batch: VecDeque<Range<u64>>,
}

/// The blocks with the inodes of recent listings, in the order of the listings. Each block has one position: that of its first
/// entry.
#[derive(Default)]
struct Listed {
    /// The position of the first block.
    start: u64,
    blocks: VecDeque<u64>,
    /// The position of each block.
    positions: HashMap<u64, u64>,
    runs: Runs,
}

/// A part of the tree of directories, and the requests along it. Directories are identified by their numbers
/// (see [`Geometry`](crate::geometry::Geometry)).
#[derive(Default)]
struct Tree {
    /// The subdirectories of a directory, in the order of its listing.
    children: HashMap<u64, Vec<u64>>,
    /// The number of directories in `children`, and of their subdirectories.
    known: usize,
    /// The parent of a directory, and the position of the directory there.
    places: HashMap<u64, (u64, usize)>,
    walks: VecDeque<Walk>,
    /// The directories that the kernel asked for last.
    demanded: VecDeque<u64>,
    last_walk: u64,
}

/// Requests along the tree.
#[derive(Clone, Copy, Debug)]
struct Walk {
    id: WalkId,
    /// The directory whose request began the walk.
    begin: u64,
    /// The first directory of the newest window, or `None` until it is known.
    marker: Option<u64>,
    /// The number of directories in the newest window.
    window: u64,
    state: WalkState,
}

/// Identifies a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WalkId(u64);

/// The state of the newest window of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WalkState {
    /// The window is being read.
    Reading,
    /// The window is being read, and the kernel has already asked for its marker: the next window follows at once.
    Wanted,
    /// The window was read up to this directory.
    Read(u64),
}

/// A window of a walk to read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) walk: WalkId,
    /// The directory before the window.
    pub(crate) behind: u64,
    /// The number of directories.
    pub(crate) len: u64,
}

/// The action for the next directory of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Read its block ahead.
    ReadAhead,
    /// Skip it: the kernel has asked or will ask for it.
    Leave,
    /// End the walk, because its reader is ahead of it in another walk, or because newer walks replaced it.
    End,
}

impl MetadataReadahead {
    /// Notes that the entries of a listing have their inodes in these blocks, in the order of the entries. Blocks that are known
    /// keep their positions.
    pub(crate) fn note_listed(&self, blocks: impl Iterator<Item = u64>) {
        let listed = &mut *self.listed.lock();
        for block in blocks {
            let next = listed.start + listed.blocks.len() as u64;
            let Entry::Vacant(vacant) = listed.positions.entry(block) else { continue };
            vacant.insert(next);
            listed.blocks.push_back(block);
            if listed.blocks.len() > LISTED_MAX {
                let oldest = listed.blocks.pop_front();
                oldest.map(|oldest| listed.positions.remove(&oldest));
                listed.start += 1;
            }
        }
    }

    /// Notes a request for a block with inodes, and returns the blocks to read ahead if the requests follow the order of the
    /// listings, or that of the image.
    pub(crate) fn note_inodes(&self, block: u64) -> Option<Ahead> {
        let mut guard = self.listed.lock();
        let listed = &mut *guard;
        let Some(position) = listed.positions.get(&block) else {
            drop(guard);
            return self.note_block(block);
        };
        let end = listed.start + listed.blocks.len() as u64;
        let (run, range) = listed.runs.note(*position, end, SKIPPED_MAX)?;
        Some(Ahead { is_listed: true, run, range, batch: VecDeque::new() })
    }

    /// Notes a request for a block, and returns the blocks to read ahead if the request continues a run along the image.
    pub(crate) fn note_block(&self, block: u64) -> Option<Ahead> {
        let (run, range) = self.runs.lock().note(block, u64::MAX, 0)?;
        Some(Ahead { is_listed: false, run, range, batch: VecDeque::new() })
    }

    /// Takes the next blocks to read ahead. They are contiguous, and behind the block that the reader asked for last.
    pub(crate) fn take_blocks(&self, ahead: &mut Ahead) -> Option<Range<u64>> {
        let Ahead { is_listed, run, range, batch } = ahead;
        if !*is_listed {
            range.start = ahead_of(self.runs.lock().reader(*run)?, range.start);
            let blocks = range.start..range.end.min(range.start + STEP_BLOCKS);
            range.start = blocks.end;
            return (!blocks.is_empty()).then_some(blocks);
        }
        if batch.is_empty() {
            let listed = self.listed.lock();
            range.start = ahead_of(listed.runs.reader(*run)?, range.start);
            let positions = range.start..range.end.min(range.start + BATCH_BLOCKS);
            range.start = positions.end;
            *batch = contiguous_parts(positions.filter_map(|position| listed.block_at(position)).collect());
        }
        batch.pop_front()
    }

    /// Notes a request for the block of a directory, and returns the window to read ahead if the request begins a walk or is
    /// for the marker of one.
    pub(crate) fn note_directory(&self, number: u64) -> Option<Window> {
        let mut guard = self.tree.lock();
        let tree = &mut *guard;
        tree.demanded.push_front(number);
        tree.demanded.truncate(DEMANDED_MAX);
        if let Some(walk) = tree.walks.iter_mut().find(|walk| walk.marker == Some(number)) {
            let WalkState::Read(behind) = walk.state else {
                walk.state = WalkState::Wanted;
                return None;
            };
            walk.window = (2 * walk.window).min(WINDOW_MAX);
            (walk.marker, walk.state) = (None, WalkState::Reading);
            return Some(Window { walk: walk.id, behind, len: walk.window });
        }
        // Only the first subdirectory of a directory, or a directory that is not known yet, begins a walk.
        if tree.places.get(&number).is_some_and(|(_, position)| *position > 0) {
            return None;
        }
        tree.last_walk += 1;
        let id = WalkId(tree.last_walk);
        let (marker, window, state) = (None, WINDOW_MIN, WalkState::Reading);
        tree.walks.push_front(Walk { id, begin: number, marker, window, state });
        tree.walks.truncate(WALKS_MAX);
        Some(Window { walk: id, behind: number, len: WINDOW_MIN })
    }

    /// The action for a directory in the newest window of a walk. The first one becomes the marker of the window.
    pub(crate) fn step(&self, walk: WalkId, number: u64) -> Step {
        let mut guard = self.tree.lock();
        let tree = &mut *guard;
        let is_demanded = tree.demanded.contains(&number);
        if is_demanded && tree.walks.iter().any(|other| other.begin == number && other.id != walk) {
            tree.walks.retain(|other| other.id != walk);
            return Step::End;
        }
        let Some(walk) = tree.walks.iter_mut().find(|other| other.id == walk) else { return Step::End };
        if walk.marker.is_none() {
            walk.marker = Some(number);
            if is_demanded {
                walk.state = WalkState::Wanted;
            }
            return Step::Leave;
        }
        if is_demanded { Step::Leave } else { Step::ReadAhead }
    }

    /// Notes that the newest window of a walk was read ahead, up to `number`, and returns the next one if its marker was
    /// asked for meanwhile.
    pub(crate) fn note_read(&self, walk: WalkId, number: u64) -> Option<Window> {
        let mut tree = self.tree.lock();
        let walk = tree.walks.iter_mut().find(|other| other.id == walk)?;
        if walk.state != WalkState::Wanted {
            walk.state = WalkState::Read(number);
            return None;
        }
        walk.window = (2 * walk.window).min(WINDOW_MAX);
        (walk.marker, walk.state) = (None, WalkState::Reading);
        Some(Window { walk: walk.id, behind: number, len: walk.window })
    }

    /// Whether the subdirectories of a directory are known.
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.tree.lock().children.contains_key(&number)
    }

    /// Notes the subdirectories of a directory, in the order of its listing.
    pub(crate) fn note_children(&self, number: u64, children: Vec<u64>) {
        let mut tree = self.tree.lock();
        let added = 1 + children.len();
        if tree.places.len() + children.len() > PLACES_MAX || tree.known + added > KNOWN_MAX {
            tree.children.clear();
            tree.places.clear();
            tree.known = 0;
        }
        for (position, child) in children.iter().enumerate().take(PLACES_MAX) {
            tree.places.insert(*child, (number, position));
        }
        let before = tree.children.insert(number, children).map_or(0, |before| 1 + before.len());
        tree.known = tree.known + added - before;
    }

    /// The next directory of a walk after this one, as far as the tree is known.
    pub(crate) fn next_directory(&self, number: u64) -> Option<u64> {
        let tree = self.tree.lock();
        if let Some(first) = tree.children.get(&number).and_then(|children| children.first()) {
            return Some(*first);
        }
        // Readers wait for the lock, so a cycle of directories in a corrupt image ends soon after its last directory: the walk
        // then comes back to `passed`, which moves ahead at each power of two.
        let (mut number, mut passed) = (number, number);
        for step in 1..=DIRECTORY_DEPTH_MAX {
            let (parent, position) = *tree.places.get(&number)?;
            if let Some(next) = tree.children.get(&parent).and_then(|children| children.get(position + 1)) {
                return Some(*next);
            }
            if parent == passed {
                return None;
            }
            number = parent;
            if step.is_power_of_two() {
                passed = number;
            }
        }
        None
    }
}

impl Listed {
    fn block_at(&self, position: u64) -> Option<u64> {
        self.blocks.get(usize::try_from(position.checked_sub(self.start)?).ok()?).copied()
    }
}

/// The block at which a readahead that has reached `start` continues. If its reader has overtaken it, readahead
/// continues some blocks ahead of the reader. Otherwise the reader would request each block while it is being read
/// ahead.
fn ahead_of(reader: u64, start: u64) -> u64 {
    if start > reader { start } else { reader + 1 + LEAD_BLOCKS }
}

/// Sorts these blocks, and returns them in contiguous parts of at most [`STEP_BLOCKS`]. Gaps of up to [`GAP_BLOCKS_MAX`] blocks are
/// filled.
fn contiguous_parts(mut blocks: Vec<u64>) -> VecDeque<Range<u64>> {
    blocks.sort_unstable();
    let mut parts: VecDeque<Range<u64>> = VecDeque::new();
    for block in blocks {
        match parts.back_mut() {
            Some(part) if block <= part.end + GAP_BLOCKS_MAX && block < part.start + STEP_BLOCKS => {
                part.end = block + 1
            }
            _ => parts.push_back(block..block + 1),
        }
    }
    parts
}

#[cfg(test)]
mod tests;
