//! Tests of the orders of readahead.

use rustix::time::{ClockId, clock_gettime};

use super::*;

fn noted(readahead: &MetadataReadahead, block: u64) -> Range<u64> {
    readahead.note_block(block).map_or(block..block, |ahead| ahead.range)
}

#[test]
fn runs_are_read_ahead_in_windows_that_double() {
    let readahead = MetadataReadahead::default();
    for (block, expected) in [
        (10, 10..10),
        // The window of 12 and 13: the marker is left to the kernel.
        (11, 13..14),
        (40, 40..40),
        (12, 15..18),
        (41, 43..44),
        (14, 19..26),
        // Inside the window: its readahead is late.
        (20, 20..20),
        (26, 28..43),
        (99, 99..99),
    ] {
        assert_eq!(noted(&readahead, block), expected, "{block}");
    }
}

#[test]
fn the_window_has_a_limit() {
    let readahead = MetadataReadahead::default();
    readahead.note_block(0);
    let (mut block, mut blocks) = (1, 0);
    for _ in 0..20 {
        let ahead = noted(&readahead, block);
        blocks = ahead.end - block.min(ahead.start);
        assert!(ahead.end - ahead.start < WINDOW_MAX, "{block}: {ahead:?}");
        // The reader uses the blocks that were read ahead, and asks for the next marker.
        block = ahead.start - 1;
    }
    assert_eq!(blocks, 2 * WINDOW_MAX, "a window is read while the one before it is used");
}

#[test]
fn a_late_readahead_continues_ahead_of_the_reader() {
    let readahead = MetadataReadahead::default();
    let windows = [10, 11, 12, 14].map(|block| readahead.note_block(block));
    let mut ahead = windows.into_iter().flatten().last().expect("a run");
    assert_eq!(ahead.range, 19..26);
    readahead.note_block(20);
    assert_eq!(readahead.take_blocks(&mut ahead), Some(21 + LEAD_BLOCKS..26));
    assert_eq!(readahead.take_blocks(&mut ahead), None);
}

#[test]
fn inodes_are_read_ahead_in_the_order_of_listings() {
    let readahead = MetadataReadahead::default();
    let blocks = |block| -> Vec<u64> {
        let Some(mut ahead) = readahead.note_inodes(block) else { return Vec::new() };
        std::iter::from_fn(|| readahead.take_blocks(&mut ahead)).flatten().collect()
    };
    readahead.note_listed([100, 100, 103, 90].into_iter());
    readahead.note_listed([95, 200, 201, 70].into_iter());
    for (block, expected) in [(100, vec![]), (103, vec![95]), (90, vec![70, 200, 201]), (500, vec![]), (501, vec![503])]
    {
        assert_eq!(blocks(block), expected, "{block}");
    }
    readahead.note_listed([200].into_iter().chain(71..77));
    readahead.note_listed([200].into_iter().chain(71..77));
    assert_eq!(blocks(201), [], "its readahead is late");
    assert_eq!(blocks(71), [72, 73, 74, 75, 76], "the next directory continues the run, and shares a block");
    readahead.note_listed((1000..).step_by(2).take(LISTED_MAX));
    assert_eq!(readahead.listed.lock().positions.len(), LISTED_MAX);
    assert_eq!(blocks(1000).first(), Some(&1004), "behind the marker");
    assert!(blocks(1004).is_empty(), "inside a window");
    assert!(blocks(1002).len() > 8, "the marker");
}

#[test]
fn scattered_blocks_do_not_form_a_run() {
    let readahead = MetadataReadahead::default();
    for block in [5, 3, 9, 7, 1, 30, 20] {
        assert!(readahead.note_block(block).is_none(), "{block}");
    }
}

/// Directory 1 contains 2, 3 and 4; 2 contains 5 and 6; 3 contains 7.
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
    let first = readahead.note_directory(1).expect("a walk begins");
    assert_eq!((first.behind, first.len), (1, 2));
    assert_eq!(readahead.step(first.walk, 2), Step::Leave, "the marker");
    assert_eq!(readahead.step(first.walk, 5), Step::ReadAhead);
    assert_eq!(readahead.note_read(first.walk, 5), None);
    assert_eq!(readahead.note_directory(4), None, "a lookup");
    assert_eq!(readahead.note_directory(2), Some(Window { walk: first.walk, behind: 5, len: 4 }));
    assert_eq!(readahead.note_directory(6), None, "asked for before the window is read");
    assert_eq!(readahead.step(first.walk, 6), Step::Leave);
    assert_eq!(readahead.step(first.walk, 3), Step::ReadAhead);
    assert_eq!(readahead.step(first.walk, 7), Step::ReadAhead);
    assert_eq!(readahead.step(first.walk, 4), Step::Leave, "it was looked up");
    let next = Window { walk: first.walk, behind: 4, len: 8 };
    assert_eq!(readahead.note_read(first.walk, 4), Some(next), "its marker was already asked for");
}

#[test]
fn a_walk_ends_where_its_reader_is_ahead() {
    let readahead = tree();
    let slow = readahead.note_directory(1).expect("a walk begins");
    assert_eq!(readahead.step(slow.walk, 2), Step::Leave);
    let fast = readahead.note_directory(5).expect("another begins");
    assert_eq!(readahead.step(slow.walk, 5), Step::End);
    assert_eq!(readahead.step(slow.walk, 6), Step::End, "it is forgotten");
    assert_eq!(readahead.step(fast.walk, 6), Step::Leave);
}

#[test]
fn the_known_part_of_the_tree_has_a_limit() {
    for children in [vec![], vec![7; 4096]] {
        let readahead = MetadataReadahead::default();
        for number in 0..2 * KNOWN_MAX as u64 / (1 + children.len() as u64) {
            readahead.note_children(number, children.clone());
            readahead.note_children(number, children.clone());
        }
        let tree = readahead.tree.lock();
        let known: usize = tree.children.values().map(|children| 1 + children.len()).sum();
        assert!(known == tree.known && known <= KNOWN_MAX, "{known} with {} children each", children.len());
    }
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

#[test]
fn readers_do_not_wait_for_the_end_of_a_cycle() {
    const CALLS: usize = 1000;
    const CPU_SECONDS_MAX: i64 = 2;
    for (tail_len, cycle_len) in [(0, 1), (0, 10), (7, 10), (100, 3)] {
        let readahead = MetadataReadahead::default();
        let last = tail_len + cycle_len - 1;
        // Each directory has the next one as its parent. That of the last one begins the cycle.
        for number in 0..last {
            readahead.note_children(number + 1, vec![number]);
        }
        readahead.tree.lock().places.insert(last, (tail_len, 0));
        readahead.tree.lock().children.insert(0, vec![]);
        let began = clock_gettime(ClockId::ThreadCPUTime);
        for _ in 0..CALLS {
            assert_eq!(readahead.next_directory(0), None);
        }
        let took_s = clock_gettime(ClockId::ThreadCPUTime).tv_sec - began.tv_sec;
        assert!(took_s < CPU_SECONDS_MAX, "{took_s} s for a cycle of {cycle_len} behind {tail_len} directories");
    }
}
