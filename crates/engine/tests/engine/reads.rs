//! Reads through the engine return the mapped bytes, in every mode and with slow or faulty sources.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Blocking, EngineOptions, Priority, Reader, Sink, SyncDecompress, Volume, VolumeOptions, WorkerMode};
use floe_image::{DeviceId, Error, ImageSource, Nid};
use floe_testkit::{FailingSource, Fault, HalfCachedSource, HeldSource, MemorySource, TruncatedSource};

use crate::patchwork::{COSTLY_BLOCK_BYTES, Options, Patchwork};

fn reader(patchwork: &Arc<Patchwork>, source: Arc<dyn ImageSource>, options: &Options) -> Reader {
    options.reader(patchwork, source)
}

fn all_modes() -> Vec<Options> {
    let mut all = Vec::new();
    for workers in [WorkerMode::PerCpu, WorkerMode::Shared, WorkerMode::Inline] {
        for sync_decompress in [SyncDecompress::Auto, SyncDecompress::Always, SyncDecompress::Never] {
            for (reserved_pages, cache_bytes) in [(0, 0), (64, 1 << 20), (1024, 64 << 20)] {
                let priority = if reserved_pages == 0 { Priority::Normal } else { Priority::Auto };
                let engine =
                    EngineOptions { cache_bytes, reserved_pages, workers, priority, ..EngineOptions::default() };
                all.push(Options { engine, volume: VolumeOptions { sync_decompress, ..VolumeOptions::default() } });
            }
        }
    }
    all
}

/// Executes all requests at once with `read_then`, and returns the replies in the order of the requests.
fn read_all_then(reader: &Reader, requests: &[(u64, u32)]) -> Vec<Result<Vec<u8>, Error>> {
    let (sender, answers) = mpsc::channel();
    for (index, (offset, len)) in requests.iter().enumerate() {
        let sender = sender.clone();
        reader.read_then(Nid(0), *offset, *len, move |result| {
            sender.send((index, result.map(<[u8]>::to_vec))).expect("somebody waits");
        });
    }
    drop(sender);
    let mut answers: Vec<_> = answers.iter().collect();
    answers.sort_by_key(|(index, _)| *index);
    assert_eq!(answers.len(), requests.len(), "each read is answered once");
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// A reply is sent before its pages return to the pool.
fn assert_pages_come_back(reader: &Reader) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while reader.engine().counters().pages.used_pages > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(reader.engine().counters().pages.used_pages, 0);
}

#[test]
fn every_mode_reads_what_the_format_maps() {
    let patchwork = Arc::new(Patchwork::new(1, 3 << 20));
    for options in all_modes() {
        let reader = reader(&patchwork, patchwork.source(), &options);
        let requests = patchwork.random_requests(2, 150);
        for (request, answer) in requests.iter().zip(read_all_then(&reader, &requests)) {
            let answer = answer.unwrap_or_else(|error| panic!("{options:?} {request:?}: {error}"));
            assert!(answer == patchwork.expected(request.0, request.1), "{options:?} {request:?}");
        }
        for (offset, len) in requests {
            let mut output = vec![0xaa; len as usize];
            let read = reader.read(Nid(0), offset, &mut output).expect("a sound image");
            assert!(&output[..read] == patchwork.expected(offset, len), "{options:?} {offset} {len}");
        }
        drop(reader);
    }
}

#[test]
fn partly_cached_data_is_read_exactly() {
    for patchwork in [Arc::new(Patchwork::chunks(3, 1 << 20)), Arc::new(Patchwork::new(4, 1 << 20))] {
        for options in all_modes() {
            let source = Arc::new(HalfCachedSource::new(patchwork.source()));
            let reader = reader(&patchwork, source, &options);
            let requests = patchwork.random_requests(2, 100);
            for (request, answer) in requests.iter().zip(read_all_then(&reader, &requests)) {
                let answer = answer.unwrap_or_else(|error| panic!("{options:?} {request:?}: {error}"));
                assert!(answer == patchwork.expected(request.0, request.1), "{options:?} {request:?}");
            }
        }
    }
}

#[test]
fn all_pages_come_back_and_each_shared_block_is_decoded_once() {
    let patchwork = Arc::new(Patchwork::costly(3, 17));
    let reader = reader(&patchwork, patchwork.source(), &Options::default());
    thread::scope(|scope| {
        for seed in 0..8 {
            let (reader, patchwork) = (&reader, &patchwork);
            scope.spawn(move || {
                for answer in read_all_then(reader, &patchwork.small_requests(seed, 2000)) {
                    answer.expect("a sound image");
                }
            });
        }
    });
    let counters = reader.volume().counters();
    assert_pages_come_back(&reader);
    assert!(counters.decodes <= 2 * patchwork.block_count() as u64, "{counters:?}");
}

#[test]
fn small_reads_of_cheap_blocks_leave_the_cache_alone() {
    let patchwork = Arc::new(Patchwork::cheap(3, 64, 100));
    let reader = reader(&patchwork, patchwork.source(), &Options::default());
    let read = |offset, len| {
        let answer = read_all_then(&reader, &[(offset, len)]).remove(0).expect("a sound image");
        assert!(answer == patchwork.expected(offset, len));
        let counters = reader.volume().counters();
        (counters.decodes, counters.blocks.misses)
    };
    for (offset, len, expected) in [
        (10, 500, (1, 0)),
        (600, 500, (2, 0)),
        (3000, 3000, (4, 0)),
        // The ends of a longer read are decoded into the cache, where small reads find them.
        (4500, 9000, (7, 2)),
        (4100, 100, (7, 2)),
    ] {
        assert_eq!(read(offset, len), expected, "{len} bytes at {offset}");
    }
}

#[test]
fn misses_on_a_stuck_source_do_not_delay_hits() {
    let patchwork = Arc::new(Patchwork::new(5, 8 << 20));
    let source = Arc::new(HeldSource::new(patchwork.source()));
    let reader = reader(&patchwork, Arc::clone(&source) as _, &Options::default());
    let (hot, len) = patchwork.some_partial_request();
    read_all_then(&reader, &[(hot, len)]).remove(0).expect("a sound image");
    source.hold();
    let (sender, answers) = mpsc::channel();
    for (offset, len) in patchwork.random_requests(6, 200) {
        let sender = sender.clone();
        reader.read_then(Nid(0), offset, len, move |result| drop(sender.send(result.map(<[u8]>::to_vec))));
    }
    drop(sender);
    for _ in 0..20 {
        let answer = read_all_then(&reader, &[(hot, len)]).remove(0).expect("a sound image");
        assert!(answer == patchwork.expected(hot, len));
    }
    assert!(source.is_held(), "a hit waited for a miss");
    assert!(answers.try_iter().count() < 200, "misses are still under way");
    source.release();
    assert!(answers.iter().all(|answer| answer.is_ok()));
}

#[test]
fn faults_are_reported_and_not_cached() {
    let patchwork = Arc::new(Patchwork::new(7, 1 << 20));
    for options in all_modes() {
        let failing = Arc::new(FailingSource::new(patchwork.source(), Fault::Reads(0..3)));
        let reader = reader(&patchwork, failing, &options);
        let requests = patchwork.random_requests(8, 40);
        let mut failures = 0;
        for (offset, len) in requests.iter().chain(&requests) {
            match read_all_then(&reader, &[(*offset, *len)]).remove(0) {
                Ok(answer) => assert!(answer == patchwork.expected(*offset, *len)),
                Err(Error::Io { .. }) => failures += 1,
                Err(error) => panic!("{options:?}: {error}"),
            }
        }
        assert!((1..=3).contains(&failures), "{options:?}: {failures}");
    }
}

#[test]
fn a_truncated_source_gives_errors_not_wrong_bytes() {
    let patchwork = Arc::new(Patchwork::new(9, 1 << 20));
    for options in all_modes() {
        let truncated = Arc::new(TruncatedSource::new(patchwork.source(), 300 << 10));
        let reader = reader(&patchwork, truncated, &options);
        let mut error_count = 0;
        for (offset, len) in patchwork.random_requests(10, 60) {
            match read_all_then(&reader, &[(offset, len)]).remove(0) {
                Ok(answer) => assert!(answer == patchwork.expected(offset, len)),
                Err(_) => error_count += 1,
            }
        }
        assert!(error_count > 0);
    }
}

#[test]
fn a_closed_volume_holds_no_source_and_answers_every_read() {
    let patchwork = Arc::new(Patchwork::new(13, 1 << 20));
    for options in all_modes() {
        let source = patchwork.source();
        let len = source.len();
        let watched = Arc::downgrade(&source);
        let reader = reader(&patchwork, source, &options);
        let requests = patchwork.random_requests(14, 60);
        assert!(read_all_then(&reader, &requests).iter().all(Result::is_ok));
        reader.volume().close();
        let deadline = Instant::now() + Duration::from_secs(60);
        while watched.strong_count() > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(watched.strong_count(), 0, "{options:?}");
        let mut error_count = 0;
        for ((offset, len), answer) in requests.iter().zip(read_all_then(&reader, &requests)) {
            match answer {
                Ok(answer) => assert!(answer == patchwork.expected(*offset, *len), "from the caches"),
                Err(_) => error_count += 1,
            }
        }
        assert!(error_count > 0, "{options:?}");
        assert_eq!(reader.volume().source(DeviceId(0)).map(|source| source.len()).ok(), Some(len));
        assert_pages_come_back(&reader);
    }
}

#[test]
fn a_panicking_source_answers_every_read() {
    struct Panicking(u64);
    impl ImageSource for Panicking {
        fn len(&self) -> u64 {
            self.0
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            panic!("on purpose")
        }
        fn try_read_at(&self, _: u64, _: &mut [u8]) -> io::Result<bool> {
            Ok(false)
        }
    }
    let patchwork = Arc::new(Patchwork::new(11, 1 << 20));
    let reader = reader(&patchwork, Arc::new(Panicking(patchwork.source().len())), &Options::default());
    let requests = patchwork.small_requests(12, 50);
    let answers = read_all_then(&reader, &requests);
    assert!(answers.iter().any(|answer| matches!(answer, Err(Error::Cancelled))));
    assert_pages_come_back(&reader);
}

#[test]
fn blocks_ahead_of_a_sequential_reader_are_decoded_early() {
    let patchwork = Arc::new(Patchwork::new(13, 8 << 20));
    let reader = reader(&patchwork, patchwork.source(), &Options::default());
    for offset in (0..8 << 20).step_by(16 << 10) {
        let answer = read_all_then(&reader, &[(offset, 16 << 10)]).remove(0).expect("a sound image");
        assert!(answer == patchwork.expected(offset, 16 << 10));
        assert!(comes(|| !reader.is_prefetching()));
    }
    let counters = reader.read_around_counters();
    assert!(counters.ahead_blocks > 50 && counters.used_blocks > 30, "{counters:?}");
    let before = reader.read_around_counters().ahead_blocks;
    for (offset, len) in patchwork.small_requests(14, 300) {
        read_all_then(&reader, &[(offset, len)]).remove(0).expect("a sound image");
    }
    assert!(reader.read_around_counters().ahead_blocks - before < 20, "a reader that jumps is not read ahead of");
}

#[test]
fn the_page_cache_receives_whole_pages_of_the_right_neighbours() {
    /// The page cache of a machine with pages of `page_bytes`. It ignores the last page of what it is given.
    struct Seen {
        patchwork: Arc<Patchwork>,
        page_bytes: u64,
        taken: mpsc::Sender<usize>,
    }
    impl Sink for Seen {
        fn push(&self, _: Nid, offset: u64, bytes: &[u8]) -> usize {
            assert!(bytes == self.patchwork.expected(offset, bytes.len() as u32));
            let end = offset + bytes.len() as u64;
            assert!(offset.is_multiple_of(self.page_bytes), "{offset}");
            assert!(end.is_multiple_of(self.page_bytes) || self.patchwork.expected(end, 1).is_empty(), "{end}");
            let taken = bytes.len().saturating_sub(self.page_bytes as usize);
            self.taken.send(taken).map_or(0, |()| taken)
        }

        fn page_bytes(&self) -> u64 {
            self.page_bytes
        }
    }
    let (small, large) = (Arc::new(Patchwork::new(15, 4 << 20)), Arc::new(Patchwork::costly(15, 68)));
    let never = Options::from(VolumeOptions { sync_decompress: SyncDecompress::Never, ..VolumeOptions::default() });
    // No block contains a whole page of 64 KiB.
    for (patchwork, page_bytes, stored_min, options) in [
        (&small, 4 << 10, 300_000, Options::default()),
        (&small, 4 << 10, 300_000, never),
        (&large, 16 << 10, 300_000, Options::default()),
        (&large, 64 << 10, 0, Options::default()),
    ] {
        let reader = reader(patchwork, patchwork.source(), &options);
        let (taken, stored) = mpsc::channel();
        reader.set_sink(Box::new(Seen { patchwork: Arc::clone(patchwork), page_bytes, taken }));
        let request_count = 100;
        let answers =
            read_all_then(&reader, &(0..request_count).map(|index| (index * 40960, 4096)).collect::<Vec<_>>());
        assert!(answers.iter().all(Result::is_ok));
        assert!(comes(|| reader.read_around_counters().stored_bytes >= stored_min), "pages of {page_bytes}");
        // Nothing is pushed once the reader is dropped, and the counters match what the page cache received.
        let counters = reader.read_around_counters();
        drop(reader);
        let taken = stored.iter().sum::<usize>() as u64;
        assert!(taken >= counters.stored_bytes, "{taken} bytes were taken of {counters:?}");
    }
}

/// Waits until `has_come` holds, for a minute at most. Returns whether it does.
fn comes(has_come: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_come() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    has_come()
}

#[test]
fn costly_blocks_are_held_until_the_page_cache_has_them() {
    /// A page cache that accepts nothing before its gate is open.
    struct Gated(Arc<Patchwork>, Mutex<mpsc::Receiver<()>>);
    impl Sink for Gated {
        fn push(&self, _: Nid, offset: u64, bytes: &[u8]) -> usize {
            let _ = self.1.lock().expect("no panic").recv();
            assert!(bytes == self.0.expected(offset, bytes.len() as u32), "{offset}");
            bytes.len()
        }

        fn page_bytes(&self) -> u64 {
            4096
        }
    }
    let (block_bytes, block_count, cache_bytes) = (u64::from(COSTLY_BLOCK_BYTES), 24, 1 << 20);
    let patchwork = Arc::new(Patchwork::costly(16, block_count + 1));
    for sync_decompress in [SyncDecompress::Auto, SyncDecompress::Never] {
        let engine = EngineOptions { cache_bytes, ..EngineOptions::default() };
        let volume = VolumeOptions { read_around: false, sync_decompress, ..VolumeOptions::default() };
        let options = Options { engine, volume };
        let reader = reader(&patchwork, patchwork.source(), &options);
        let (gate, closed) = mpsc::channel();
        reader.set_sink(Box::new(Gated(Arc::clone(&patchwork), Mutex::new(closed))));
        for number in 0..block_count as u64 {
            read_all_then(&reader, &[(number * block_bytes, 4096)]).remove(0).expect("a sound image");
        }
        // Blocks beyond a quarter of the cache are dropped, and only those.
        let held_count = cache_bytes / 4 / block_bytes;
        let dropped_count = block_count as u64 - held_count;
        assert!(
            comes(|| reader.read_around_counters().dropped == dropped_count),
            "{:?}",
            reader.read_around_counters()
        );
        assert!(reader.engine().counters().blocks.evictions > 0, "the cache has no room for all");
        drop(gate);
        let stored_bytes = held_count * (block_bytes - 4096);
        assert!(comes(|| reader.read_around_counters().stored_bytes == stored_bytes));
        // Once there is room, the next block is held again.
        read_all_then(&reader, &[(block_count as u64 * block_bytes, 4096)]).remove(0).expect("a sound image");
        assert!(comes(|| reader.read_around_counters().stored_bytes == stored_bytes + block_bytes - 4096));
        assert_eq!(reader.read_around_counters().dropped, dropped_count);
    }
}

#[test]
fn stored_metadata_is_exact_and_ends_with_the_device() {
    let image: Vec<u8> = (0..40_000_u32).map(|index| ((index * 7) >> 3) as u8).collect();
    let source = Arc::new(MemorySource::new(image.clone()));
    let volume = Volume::alone(vec![source], &EngineOptions::default(), &VolumeOptions::default());
    let volume = volume.expect("an engine");
    let reader = volume.block_reader(Blocking::Allowed);
    let image_len = image.len() as u64;
    for offset in [0, 1, 16_383, 16_384, 30_000, 32_768, 39_999, 40_000, 40_001, 49_152, u64::MAX - 1] {
        for len in [0, 1, 16_384, 16_385, 40_000, 40_001] {
            let expected = usize::try_from(offset).ok().and_then(|start| image.get(start..start.checked_add(len)?));
            let stored = reader.stored(DeviceId(0), offset, len);
            match expected {
                Some(expected) => assert_eq!(stored.expect("inside"), expected, "{len} from {offset}"),
                None => assert!(matches!(stored, Err(Error::Corrupt { .. })), "{len} from {offset}: {stored:?}"),
            }
        }
    }
    // Three pieces, each with the cost of an entry.
    assert_eq!(volume.counters().stored_metadata.weight, image_len + 3 * 256, "nothing past the end is cached");
    assert!(matches!(reader.stored(DeviceId(1), 0, 1), Err(Error::Corrupt { .. })));
}

/// A source whose first read waits and then fails. Later reads wait until that has happened and they are released.
struct FirstFails {
    inner: Arc<dyn ImageSource>,
    state: Mutex<FirstFailsState>,
    changed: Condvar,
}

#[derive(Default)]
struct FirstFailsState {
    read_count: usize,
    may_fail: bool,
    is_released: bool,
}

impl FirstFails {
    fn wait_for(&self, is_reached: impl Fn(&FirstFailsState) -> bool) {
        let state = self.state.lock().expect("no panic");
        let limit = Duration::from_secs(120);
        let waited = self.changed.wait_timeout_while(state, limit, |state| !is_reached(state)).expect("no panic");
        assert!(!waited.1.timed_out(), "it happens in time, after {} reads", waited.0.read_count);
    }

    fn change(&self, change: impl FnOnce(&mut FirstFailsState)) {
        change(&mut self.state.lock().expect("no panic"));
        self.changed.notify_all();
    }
}

impl ImageSource for FirstFails {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let mut is_first = false;
        self.change(|state| {
            is_first = state.read_count == 0;
            state.read_count += 1;
        });
        if is_first {
            self.wait_for(|state| state.may_fail);
            return Err(io::Error::other("the first read fails"));
        }
        self.wait_for(|state| state.is_released);
        self.inner.read_at(offset, output)
    }

    fn try_read_at(&self, _offset: u64, _output: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }
}

#[test]
fn reads_that_look_a_block_up_again_do_not_wait_for_each_other() {
    const BLOCK: u64 = COSTLY_BLOCK_BYTES as u64;
    // More than the threads that wait for sources, each with a block of its own.
    const BUSY: u64 = 80;
    const FOLLOWERS: usize = 300;
    let patchwork = Arc::new(Patchwork::costly(11, 2 + BUSY as usize));
    let (inner, changed) = (patchwork.source(), Condvar::new());
    let source = Arc::new(FirstFails { inner, state: Mutex::default(), changed });
    let options = Options {
        engine: EngineOptions { read_bytes: 1 << 30, ..EngineOptions::default() },
        volume: VolumeOptions { read_around: false, ..VolumeOptions::default() },
    };
    let reader = reader(&patchwork, Arc::clone(&source) as _, &options);
    let (sender, answers) = mpsc::channel();
    let read = |offset: u64, len: u32| {
        let (sender, expected) = (sender.clone(), patchwork.expected(offset, len).to_vec());
        reader.read_then(Nid(0), offset, len, move |result| {
            let _ = sender.send(result.map(|bytes| assert!(bytes == expected)));
        });
    };
    // The end of the first block and the start of the second, which are fetched together: this leads both.
    read(BLOCK - 100, 200);
    source.wait_for(|state| state.read_count == 1);
    (0..FOLLOWERS).for_each(|_| read(10, 5000));
    // All threads wait for the source, and more reads are in the queue.
    (0..BUSY).for_each(|block| read((2 + block) * BLOCK + 10, 5000));
    source.wait_for(|state| state.read_count == 64);
    source.change(|state| state.may_fail = true);
    source.wait_for(|state| state.read_count == 65);
    // The followers are in the queue now. The next read leads their block, behind them.
    read(10, 5000);
    source.change(|state| state.is_released = true);
    let failures = (0..2 + FOLLOWERS + BUSY as usize).filter(|_| {
        let answer = answers.recv_timeout(Duration::from_secs(120));
        answer.expect("each read ends").is_err()
    });
    assert_eq!(failures.count(), 1, "only the read that met the fault fails");
}
