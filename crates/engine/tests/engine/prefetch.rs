//! Each kind of prefetch works when it is switched on, and only then.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use floe_engine::{ListedFile, PrefetchKind, PrefetchSet, Reader, Sink, VolumeOptions};
use floe_image::{ByteRange, ImageSource, Nid};

use crate::patchwork::{COSTLY_BLOCK_BYTES, Options, Patchwork};

/// A page cache that counts what is pushed into it.
struct Taking {
    stored: Arc<AtomicU64>,
    reads_whole_files: bool,
}

impl Taking {
    fn new(stored: &Arc<AtomicU64>) -> Self {
        Self { stored: Arc::clone(stored), reads_whole_files: false }
    }
}

impl Sink for Taking {
    fn push(&self, _: Nid, _: u64, bytes: &[u8]) -> usize {
        self.stored.fetch_add(bytes.len() as u64, Relaxed);
        bytes.len()
    }

    fn reads_whole_files(&self, _: Nid) -> bool {
        self.reads_whole_files
    }

    fn page_bytes(&self) -> u64 {
        4096
    }
}

/// A source that counts the bytes that the page cache may drop.
struct Dropping {
    source: Arc<dyn ImageSource>,
    dropped: Arc<AtomicU64>,
}

impl ImageSource for Dropping {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.source.read_at(offset, output)
    }

    fn dont_need(&self, _: u64, len: u64) {
        self.dropped.fetch_add(len, Relaxed);
    }
}

/// The amounts that a workload caused to be prefetched.
#[derive(Clone, Copy, Debug)]
struct Prefetched {
    ahead_blocks: u64,
    stored_bytes: u64,
    dropped_bytes: u64,
}

fn read_one(reader: &Reader, nid: u64, offset: u64, len: u32) {
    let (sender, answer) = mpsc::channel();
    reader.read_then(Nid(nid), offset, len, move |result| drop(sender.send(result.map(<[u8]>::len))));
    answer.recv().expect("an answer").expect("a sound image");
}

/// The workload for which a kind of prefetch exists.
fn read(reader: &Reader, kind: PrefetchKind) {
    let one = |nid: u64, offset: u64, len: u32| read_one(reader, nid, offset, len);
    match kind {
        PrefetchKind::Sequential | PrefetchKind::DropBehind => {
            for offset in (0..8 << 20).step_by(16 << 10) {
                one(0, offset, 16 << 10);
                rest(reader);
            }
        }
        PrefetchKind::Directory => {
            let files: Vec<_> = (1..200).map(|nid| ListedFile { nid: Nid(nid), size: 8192 }).collect();
            reader.note_listed(Nid(1000), true, &files);
            for nid in 1..200 {
                one(nid, 0, 4096);
                rest(reader);
            }
        }
        PrefetchKind::RestOfBlock => (0..100).for_each(|index| one(0, index * 40_960, 4096)),
    }
}

/// Waits until read-ahead has stopped, so that the next read finds its results.
fn rest(reader: &Reader) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while reader.is_prefetching() && Instant::now() < deadline {
        thread::sleep(Duration::from_micros(200));
    }
}

fn prefetched(kind: PrefetchKind, set: PrefetchSet) -> Prefetched {
    let patchwork = Arc::new(Patchwork::new(61, 9 << 20));
    let (stored, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let source = Arc::new(Dropping { source: patchwork.source(), dropped: Arc::clone(&dropped) });
    let options = VolumeOptions { prefetch: set, ..VolumeOptions::default() };
    let reader = Options::from(options).reader(&patchwork, source);
    reader.set_sink(Box::new(Taking::new(&stored)));
    read(&reader, kind);
    let now = || Prefetched {
        ahead_blocks: reader.read_around_counters().ahead_blocks,
        stored_bytes: stored.load(Relaxed),
        dropped_bytes: dropped.load(Relaxed),
    };
    // Prefetch is asynchronous.
    let deadline = Instant::now() + Duration::from_secs(60);
    while set.has(kind) && !does(kind, now()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    now()
}

fn does(kind: PrefetchKind, prefetched: Prefetched) -> bool {
    match kind {
        PrefetchKind::Sequential => prefetched.ahead_blocks > 30,
        PrefetchKind::Directory | PrefetchKind::RestOfBlock => prefetched.stored_bytes > 100_000,
        PrefetchKind::DropBehind => prefetched.dropped_bytes > 1 << 20,
    }
}

#[test]
fn each_kind_does_its_work_and_none_where_it_is_switched_off() {
    for kind in PrefetchKind::ALL {
        let found = prefetched(kind, kind.name().parse().expect("a set of one"));
        assert!(does(kind, found), "{}: {found:?}", kind.name());
        let others: Vec<_> =
            PrefetchKind::ALL.into_iter().filter(|other| *other != kind).map(|kind| kind.name()).collect();
        let found = prefetched(kind, others.join("+").parse().expect("a set"));
        match kind {
            PrefetchKind::Sequential => assert_eq!(found.ahead_blocks, 0),
            PrefetchKind::DropBehind => assert_eq!(found.dropped_bytes, 0),
            _ => {}
        }
        let found = prefetched(kind, PrefetchSet::NONE);
        assert_eq!((found.ahead_blocks, found.stored_bytes, found.dropped_bytes), (0, 0, 0), "{}", kind.name());
    }
}

/// Lets sequential readers of files, each from its start, take turns. Returns how many blocks were not decoded ahead
/// because their reader had already passed them or had moved to another place.
fn cancelled(readers: &[(u64, u64)]) -> u64 {
    let patchwork = Arc::new(Patchwork::new(64, 8 << 20));
    let options = VolumeOptions { prefetch: "sequential".parse().expect("a set"), ..VolumeOptions::default() };
    let reader = Options::from(options).reader(&patchwork, patchwork.source());
    for offset in (0..4 << 20).step_by(64 << 10) {
        readers.iter().for_each(|(nid, start)| read_one(&reader, *nid, start + offset, 64 << 10));
        rest(&reader);
    }
    let counters = reader.read_around_counters();
    assert!(counters.ahead_blocks > 0, "{counters:?}");
    counters.cancelled
}

#[test]
fn readers_side_by_side_do_not_cancel_the_windows_of_each_other() {
    let (first, second) = ((7, 0), (8, 4 << 20));
    let alone = cancelled(&[first]) + cancelled(&[second]);
    assert_eq!(cancelled(&[first, second]), alone);
}

/// A source behind a network: each read takes a round trip, unless the bytes were announced that long before.
struct Far {
    source: Arc<dyn ImageSource>,
    round_trip: Duration,
    asked: Mutex<Vec<(ByteRange, Instant)>>,
    /// Reads that waited for a whole round trip.
    whole_waits: AtomicU64,
}

impl Far {
    fn new(source: Arc<dyn ImageSource>, round_trip: Duration) -> Arc<Self> {
        Arc::new(Self { source, round_trip, asked: Mutex::default(), whole_waits: AtomicU64::new(0) })
    }

    fn largest_asked(&self) -> u64 {
        self.asked.lock().expect("no panic").iter().map(|(range, _)| range.len()).max().unwrap_or(0)
    }
}

impl ImageSource for Far {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let wanted = ByteRange::new(offset, output.len() as u64);
        let asked = self.asked.lock().expect("no panic").iter().find(|(range, _)| range.contains(wanted)).copied();
        let rest = asked.map_or(self.round_trip, |(_, at)| self.round_trip.saturating_sub(at.elapsed()));
        self.whole_waits.fetch_add(asked.is_none().into(), Relaxed);
        thread::sleep(rest);
        self.source.read_at(offset, output)
    }

    fn try_read_at(&self, _: u64, _: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.asked.lock().expect("no panic").push((ByteRange::new(offset, len), Instant::now()));
    }
}

/// Reads 4 MiB sequentially from a source with round trips of 20 ms.
fn read_far(prefetch: &str, fetch_around_bytes: u64) -> Arc<Far> {
    let patchwork = Arc::new(Patchwork::new(62, 4 << 20));
    let far = Far::new(patchwork.source(), Duration::from_millis(20));
    let options =
        VolumeOptions { prefetch: prefetch.parse().expect("a set"), fetch_around_bytes, ..Default::default() };
    let reader = Options::from(options).reader(&patchwork, Arc::clone(&far) as _);
    (0..4 << 20).step_by(64 << 10).for_each(|offset| read_one(&reader, 0, offset, 64 << 10));
    far
}

#[test]
fn a_far_source_is_asked_for_windows_of_what_a_miss_costs() {
    let alone = read_far("none", 0);
    // Only for the blocks of one read.
    assert!(alone.largest_asked() < 100 << 10, "{}", alone.largest_asked());
    let alone_waits = alone.whole_waits.load(Relaxed);
    assert!(alone_waits > 60, "{alone_waits}");
    // Each by itself: fault-around, and sequential readahead.
    for (prefetch, fetch_around_bytes, asked_min) in [("none", 128 << 10, 1 << 20), ("sequential", 0, 100 << 10)] {
        let far = read_far(prefetch, fetch_around_bytes);
        let waits = far.whole_waits.load(Relaxed);
        eprintln!("{prefetch}, fetch-around={fetch_around_bytes}: {waits} whole round trips instead of {alone_waits}");
        assert!(far.largest_asked() >= asked_min, "{prefetch}: {}", far.largest_asked());
        assert!(waits < alone_waits / 2, "{prefetch}: {waits} of {alone_waits}");
    }
}

#[test]
fn no_rest_of_a_block_is_pushed_where_the_kernel_reads_whole_files() {
    let stored_bytes = |reads_whole_files: bool| {
        let patchwork = Arc::new(Patchwork::costly(65, 8));
        let volume = VolumeOptions { prefetch: "rest-of-block".parse().expect("a set"), ..VolumeOptions::default() };
        let reader = Options::from(volume).reader(&patchwork, patchwork.source());
        let stored = Arc::new(AtomicU64::new(0));
        reader.set_sink(Box::new(Taking { reads_whole_files, ..Taking::new(&stored) }));
        (0..8).for_each(|block| read_one(&reader, 0, block * u64::from(COSTLY_BLOCK_BYTES), 4096));
        settled(&stored)
    };
    assert_eq!(stored_bytes(true), 0);
    assert!(stored_bytes(false) > 0);
}

/// The value of a counter once it no longer grows.
fn settled(counter: &AtomicU64) -> u64 {
    loop {
        let before = counter.load(Relaxed);
        thread::sleep(Duration::from_millis(300));
        if counter.load(Relaxed) == before {
            return before;
        }
    }
}

/// The number of files read from after which readers count as reading little of each file.
const LEARNT_FILES: u64 = 200;

#[test]
fn the_rest_of_a_block_follows_only_further_reads_of_a_file_while_files_are_read_once() {
    let patchwork = Arc::new(Patchwork::costly(65, 8));
    let options = VolumeOptions { prefetch: "rest-of-block".parse().expect("a set"), ..VolumeOptions::default() };
    let reader = Options::from(options).reader(&patchwork, patchwork.source());
    let stored = Arc::new(AtomicU64::new(0));
    reader.set_sink(Box::new(Taking::new(&stored)));
    let read = |files: std::ops::Range<u64>, page: u64| {
        for nid in files {
            read_one(&reader, nid, nid % 8 * u64::from(COSTLY_BLOCK_BYTES) + page * 4096, 4096);
        }
        // A push may end later than the read that caused it.
        settled(&stored)
    };
    let before = read(0..LEARNT_FILES, 3);
    assert!(before > 0, "at first, nothing is known");
    assert_eq!(read(LEARNT_FILES..2 * LEARNT_FILES, 3), before, "these files are read once");
    let again = LEARNT_FILES + 8..LEARNT_FILES + 16;
    read(again, 5);
    let deadline = Instant::now() + Duration::from_secs(60);
    while stored.load(Relaxed) <= before && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(stored.load(Relaxed) > before, "their next reads show that more follow");
}
