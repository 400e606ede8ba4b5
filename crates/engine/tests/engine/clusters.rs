//! Clusters around small reads are pushed into the page cache.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Reader, Sink, VolumeOptions};
use floe_image::{ByteRange, Nid};

use crate::patchwork::{COSTLY_BLOCK_BYTES, Options, Patchwork};

const PAGE_BYTES: u64 = 4096;

const CLUSTER_PAGES: u64 = 32;

/// The number of reads in a cluster after which all of it is pushed.
const CLUSTER_READS: u64 = 2;

/// The number of blocks in a file of eight clusters; a block is a page.
const BLOCK_COUNT: usize = 8 * CLUSTER_PAGES as usize;

const CLUSTER_BYTES: u64 = CLUSTER_PAGES * PAGE_BYTES;

/// A page cache that compares what is pushed into it with the file.
struct Comparing {
    patchwork: Arc<Patchwork>,
    pushed: Arc<Mutex<Vec<ByteRange>>>,
}

impl Sink for Comparing {
    fn push(&self, _: Nid, offset: u64, bytes: &[u8]) -> usize {
        let range = ByteRange::new(offset, bytes.len() as u64);
        assert!(self.patchwork.expected(offset, bytes.len() as u32) == bytes, "wrong bytes: {range:?}");
        assert!(range.offset().is_multiple_of(PAGE_BYTES), "{range:?} begins within a page");
        self.pushed.lock().expect("no panic").push(range);
        bytes.len()
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }
}

/// Reads a page as the kernel does.
fn read_page(reader: &Reader, patchwork: &Patchwork, page: u64) {
    read_pages(reader, patchwork, page, 1);
}

fn read_pages(reader: &Reader, patchwork: &Patchwork, page: u64, count: u64) {
    let (sender, answer) = mpsc::channel();
    let (offset, len) = (page * PAGE_BYTES, (count * PAGE_BYTES) as u32);
    reader.read_then(Nid(7), offset, len, move |result| {
        drop(sender.send(result.map(<[u8]>::to_vec)));
    });
    let bytes = answer.recv().expect("an answer").expect("a sound image");
    assert!(bytes == patchwork.expected(offset, len));
}

/// Reads pages of a file one by one; returns what is pushed until `byte_count` bytes are.
fn pushed(patchwork: Patchwork, options: VolumeOptions, pages: &[u64], byte_count: u64) -> Vec<ByteRange> {
    let (patchwork, pushed) = (Arc::new(patchwork), Arc::new(Mutex::new(Vec::new())));
    let reader = Options::from(options).reader(&patchwork, patchwork.source());
    reader.set_sink(Box::new(Comparing { patchwork: Arc::clone(&patchwork), pushed: Arc::clone(&pushed) }));
    for page in pages {
        read_page(&reader, &patchwork, *page);
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while reader.read_around_counters().stored_bytes < byte_count && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    // Data that must not be pushed gets time to arrive.
    thread::sleep(Duration::from_millis(if byte_count == 0 { 100 } else { 0 }));
    assert_eq!(reader.read_around_counters().stored_bytes, byte_count, "as counted");
    let mut pushed = pushed.lock().expect("no panic").clone();
    pushed.sort_by_key(|range| range.offset());
    pushed
}

/// All reads but the last of each of eight clusters, and then the last ones of the first three.
fn pages() -> Vec<u64> {
    let read = |cluster: u64, number: u64| cluster * CLUSTER_PAGES + 3 + 11 * number;
    let earlier = (0..CLUSTER_READS - 1).flat_map(|number| (0..8).map(move |cluster| read(cluster, number)));
    earlier.chain((0..3).map(|cluster| read(cluster, CLUSTER_READS - 1))).collect()
}

#[test]
fn the_second_read_of_cheap_blocks_pushes_its_cluster() {
    let clusters = [0, 1, 2].map(|number| ByteRange::new(number * CLUSTER_BYTES, CLUSTER_BYTES));
    let found = pushed(Patchwork::cheap(71, BLOCK_COUNT, 0), VolumeOptions::default(), &pages(), 3 * CLUSTER_BYTES);
    assert_eq!(found, clusters);
}

#[test]
fn clusters_are_left_alone_where_they_do_not_pay() {
    let (defaults, pages) = (VolumeOptions::default(), pages());
    for (name, patchwork, options, pages) in [
        ("scattered", Patchwork::cheap(72, BLOCK_COUNT, 0), defaults.clone(), &pages[..pages.len() - 3]),
        (
            "without read-around",
            Patchwork::cheap(73, BLOCK_COUNT, 0),
            VolumeOptions { read_around: false, ..defaults.clone() },
            &pages,
        ),
        (
            "without rest-of-block",
            Patchwork::cheap(74, BLOCK_COUNT, 0),
            VolumeOptions { prefetch: "sequential".parse().expect("a set"), ..defaults },
            &pages,
        ),
    ] {
        assert_eq!(pushed(patchwork, options, pages, 0), [], "{name}");
    }
}

#[test]
fn clusters_end_with_their_file() {
    // The second cluster has eight pages, the last of them not whole.
    let (patchwork, len) = (Patchwork::cheap(75, CLUSTER_PAGES as usize + 8, 100), 8 * PAGE_BYTES - 100);
    let found = pushed(patchwork, VolumeOptions::default(), &[33, 36], len);
    assert_eq!(found, [ByteRange::new(CLUSTER_BYTES, len)]);
}

/// A page cache that reads by itself, and records the ranges that it is asked to read.
struct Reading {
    requested: Arc<Mutex<Vec<ByteRange>>>,
}

impl Sink for Reading {
    fn push(&self, _: Nid, offset: u64, bytes: &[u8]) -> usize {
        panic!("{} bytes from {offset} are pushed", bytes.len());
    }

    fn reads_by_itself(&self, nid: Nid) -> bool {
        nid == Nid(7)
    }

    fn request(&self, _: Nid, range: ByteRange, _cpus_are_short: bool) {
        self.requested.lock().expect("no panic").push(range);
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }
}

#[test]
fn a_page_cache_that_reads_by_itself_receives_requests() {
    let clusters = [0, 1, 2].map(|number| ByteRange::new(number * CLUSTER_BYTES, CLUSTER_BYTES)).to_vec();
    let block_bytes = u64::from(COSTLY_BLOCK_BYTES);
    let block = ByteRange::new(block_bytes, block_bytes);
    let first_page = block_bytes / PAGE_BYTES;
    for (name, patchwork, pages, expected) in [
        ("clusters", Patchwork::cheap(76, BLOCK_COUNT, 0), &pages()[..], clusters),
        ("the rest of a block, once", Patchwork::costly(77, 4), &[first_page, first_page + 1][..], vec![block]),
    ] {
        let (patchwork, requested) = (Arc::new(patchwork), Arc::new(Mutex::new(Vec::new())));
        let reader = Options::default().reader(&patchwork, patchwork.source());
        reader.set_sink(Box::new(Reading { requested: Arc::clone(&requested) }));
        for page in pages {
            read_page(&reader, &patchwork, *page);
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        while requested.lock().expect("no panic").len() < expected.len() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let mut requested = requested.lock().expect("no panic").clone();
        requested.sort_by_key(|range| range.offset());
        assert_eq!(requested, expected, "{name}");
        assert_eq!(reader.read_around_counters().stored_bytes, 0, "{name}");
    }
}

#[test]
fn a_large_read_has_the_rest_of_its_blocks_read_only_if_it_is_prefetch() {
    let block_bytes = u64::from(COSTLY_BLOCK_BYTES);
    let (pages, blocks) =
        (block_bytes / PAGE_BYTES, [ByteRange::new(0, block_bytes), ByteRange::new(block_bytes, block_bytes)]);
    for (is_prefetch, expected) in [(false, vec![]), (true, blocks.to_vec())] {
        let (patchwork, requested) = (Arc::new(Patchwork::costly(78, 4)), Arc::new(Mutex::new(Vec::new())));
        let reader = Options::default().reader(&patchwork, patchwork.source());
        reader.set_sink(Box::new(Reading { requested: Arc::clone(&requested) }));
        let reading = if is_prefetch { reader.for_prefetch() } else { reader.clone() };
        // The second half of a block and the first half of the next.
        read_pages(&reading, &patchwork, pages / 2, pages);
        let deadline = Instant::now() + Duration::from_secs(120);
        while requested.lock().expect("no panic").len() < expected.len() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        // A request that must not be made gets time to arrive.
        thread::sleep(Duration::from_millis(if is_prefetch { 0 } else { 100 }));
        let mut requested = requested.lock().expect("no panic").clone();
        requested.sort_by_key(|range| range.offset());
        assert_eq!(requested, expected, "prefetch: {is_prefetch}");
    }
}
