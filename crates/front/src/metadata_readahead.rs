//! Readahead of rendered metadata.
//!
//! The kernel reads metadata page by page, each in a request of its own. Where requests follow an order, the blocks that come
//! next are stored in the page cache before the kernel asks for them. There are two orders:
//!
//! - *Along the image*: blocks of inodes that share them, and blocks of one directory, in the order of their addresses. That
//!   is how listings are read, and how `ls -l` reads inodes.
//! - *Along the tree*: the blocks that directories have for themselves, each directory before those in it, in the order of
//!   their listings. That is how `find` reads them.
//!
//! In either order the window of blocks that are read ahead doubles when a request continues where the window ended, so
//! it stays small where nobody uses the blocks.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The number of runs along the image that are followed at a time.
const RUNS_MAX: usize = 16;

/// The first window of a run, and of a walk, in blocks.
const WINDOW_MIN: u64 = 2;

/// The largest window, in blocks.
const WINDOW_MAX: u64 = 64;

/// The number of directories whose places in the tree are known at a time.
const PLACES_MAX: usize = 1 << 16;

/// The number of walks along the tree that are followed at a time.
const WALKS_MAX: usize = 16;

/// The orders in which metadata is being read.
#[derive(Default)]
pub(crate) struct MetadataReadahead {
    runs: Mutex<VecDeque<Run>>,
    tree: Mutex<Tree>,
}

/// Requests along the image.
#[derive(Clone, Debug)]
struct Run {
    /// The blocks that are read ahead; its end is the block whose request says that the run goes on.
    ahead: Range<u64>,
    window: u64,
}

/// A part of the tree of directories, and the requests along it. A directory is named by its inode number.
#[derive(Default)]
struct Tree {
    /// The directories in a directory, in the order of its listing.
    children: HashMap<u64, Vec<u64>>,
    /// The directory that a directory is in, and its position there.
    places: HashMap<u64, (u64, usize)>,
    walks: VecDeque<Walk>,
}

/// Requests along the tree.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The directory behind the last one that is read ahead: its request says that the walk goes on.
    next: u64,
    window: u64,
}

impl MetadataReadahead {
    /// Notes a request for a block that belongs to a run along the image; returns the blocks to read ahead.
    pub(crate) fn note_block(&self, block: u64) -> Range<u64> {
        let mut runs = lock(&self.runs);
        // A request for a block that is read ahead came before that was done: the window is too small.
        let run = runs.iter().position(|run| run.ahead.start <= block && block <= run.ahead.end);
        let Some(run) = run.and_then(|index| runs.remove(index)) else {
            runs.push_front(Run { ahead: block + 1..block + 1, window: 0 });
            runs.truncate(RUNS_MAX);
            return block..block;
        };
        let window = (2 * run.window).clamp(WINDOW_MIN, WINDOW_MAX);
        let start = run.ahead.end.max(block + 1);
        let end = (block + 1 + WINDOW_MAX).min(start + window).max(start);
        runs.push_front(Run { ahead: block + 1..end, window });
        start..end
    }

    /// Notes a request for the block of a directory; returns the number of directories behind it to read ahead, if the
    /// request begins a walk or follows one.
    pub(crate) fn note_directory(&self, number: u64) -> Option<u64> {
        let mut tree = lock(&self.tree);
        let walk = tree.walks.iter().position(|walk| walk.next == number).and_then(|index| tree.walks.remove(index));
        // The first directory in another is where a walk may begin.
        let begins = || tree.places.get(&number).is_none_or(|(_, position)| *position == 0);
        match walk {
            Some(walk) => Some((2 * walk.window).min(WINDOW_MAX)),
            None => begins().then_some(WINDOW_MIN),
        }
    }

    /// Whether the directories in a directory are known.
    pub(crate) fn knows(&self, number: u64) -> bool {
        lock(&self.tree).children.contains_key(&number)
    }

    /// Notes the directories in a directory, in the order of its listing.
    pub(crate) fn note_children(&self, number: u64, children: Vec<u64>) {
        let mut tree = lock(&self.tree);
        if tree.places.len() + children.len() > PLACES_MAX {
            tree.children.clear();
            tree.places.clear();
        }
        for (position, child) in children.iter().enumerate().take(PLACES_MAX) {
            tree.places.insert(*child, (number, position));
        }
        tree.children.insert(number, children);
    }

    /// The directory that a walk comes to after this one, as far as the tree is known.
    pub(crate) fn next_directory(&self, number: u64) -> Option<u64> {
        let tree = lock(&self.tree);
        if let Some(first) = tree.children.get(&number).and_then(|children| children.first()) {
            return Some(*first);
        }
        let mut number = number;
        // No image has a tree so deep that this ends too early; a cycle of hard links would not end.
        for _ in 0..PLACES_MAX {
            let (parent, position) = *tree.places.get(&number)?;
            if let Some(next) = tree.children.get(&parent).and_then(|children| children.get(position + 1)) {
                return Some(*next);
            }
            number = parent;
        }
        None
    }

    /// Notes that the tree is read ahead up to `next`, which is left to the kernel: its request confirms the walk.
    pub(crate) fn note_read_ahead(&self, next: u64, window: u64) {
        let mut tree = lock(&self.tree);
        tree.walks.push_front(Walk { next, window });
        tree.walks.truncate(WALKS_MAX);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_ahead_in_windows_that_double() {
        let readahead = MetadataReadahead::default();
        for (block, expected) in
            [(10, 10..10), (11, 12..14), (40, 40..40), (14, 15..19), (41, 42..44), (19, 20..28), (99, 99..99)]
        {
            assert_eq!(readahead.note_block(block), expected, "{block}");
        }
    }

    #[test]
    fn the_window_doubles_where_the_reader_is_faster() {
        let readahead = MetadataReadahead::default();
        for (block, expected) in [(10, 10..10), (11, 12..14), (12, 14..18), (13, 18..26), (26, 27..43)] {
            assert_eq!(readahead.note_block(block), expected, "{block}");
        }
        for block in 27..200 {
            let ahead = readahead.note_block(block);
            assert!(ahead.end <= block + 1 + WINDOW_MAX, "{block}: {ahead:?}");
        }
    }

    #[test]
    fn scattered_blocks_are_no_run() {
        let readahead = MetadataReadahead::default();
        for block in [5, 3, 9, 7, 1, 30, 20] {
            assert!(readahead.note_block(block).is_empty(), "{block}");
        }
    }

    /// 1 holds 2, 3 and 4; 2 holds 5 and 6; 3 holds 7.
    fn tree() -> MetadataReadahead {
        let readahead = MetadataReadahead::default();
        for (number, children) in [(1, vec![2, 3, 4]), (2, vec![5, 6]), (3, vec![7]), (5, vec![]), (7, vec![])] {
            readahead.note_children(number, children);
        }
        readahead
    }

    #[test]
    fn a_walk_comes_to_a_directory_before_those_in_it() {
        let readahead = tree();
        let order: Vec<u64> = std::iter::successors(Some(1), |number| readahead.next_directory(*number)).collect();
        assert_eq!(order, [1, 2, 5, 6, 3, 7, 4]);
        assert!(readahead.knows(7) && !readahead.knows(4));
    }

    #[test]
    fn walks_are_followed_and_lookups_are_not() {
        let readahead = tree();
        assert_eq!(readahead.note_directory(1), Some(2));
        readahead.note_read_ahead(6, 2);
        assert_eq!(readahead.note_directory(4), None);
        assert_eq!(readahead.note_directory(6), Some(4));
        assert_eq!(readahead.note_directory(6), None, "a walk is continued once");
    }

    #[test]
    fn a_cycle_of_directories_ends() {
        let readahead = MetadataReadahead::default();
        readahead.note_children(1, vec![2]);
        readahead.note_children(2, vec![1]);
        assert_eq!(readahead.next_directory(1), Some(2));
        readahead.note_children(3, vec![]);
        readahead.note_children(4, vec![3]);
        readahead.note_children(3, vec![]);
        assert_eq!(readahead.next_directory(3), None);
    }
}
