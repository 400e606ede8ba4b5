//! Options can be changed while reads continue.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use floe_engine::{
    EngineOptions, MetadataCacheDesign, PAGE_BYTES, Priority, ReadaheadAlloc, Reader, SyncDecompress, TuneError,
    VolumeOptions, WorkerMode,
};
use floe_image::Nid;
use floe_testkit::{Random, SlowSource, skip};

use crate::patchwork::{Options, Patchwork};

fn reader(patchwork: &Arc<Patchwork>, options: impl Into<Options>) -> Reader {
    options.into().reader(patchwork, patchwork.source())
}

fn read(reader: &Reader, offset: u64, len: u32) -> Vec<u8> {
    let (sender, answer) = mpsc::channel();
    reader.read_then(Nid(0), offset, len, move |result| drop(sender.send(result.map(<[u8]>::to_vec))));
    answer.recv().expect("an answer").expect("a sound image")
}

/// Random values for all options.
fn any_options(random: &mut Random) -> Options {
    let mut one_of = |count: u64| random.below(count) as usize;
    let engine = EngineOptions {
        cache_bytes: [0, 256 << 10, 4 << 20, 64 << 20][one_of(4)],
        cache_growth_bytes: [0, 64 << 20][one_of(2)],
        reserved_pages: [0, 32, 1024][one_of(3)],
        metadata_cache: MetadataCacheDesign::Sharded { block_count: [1, 64, 1024][one_of(3)] },
        workers: [WorkerMode::PerCpu, WorkerMode::Shared, WorkerMode::Inline][one_of(3)],
        priority: [Priority::Auto, Priority::Nice(5), Priority::Normal][one_of(3)],
        decoder_bytes: 32 << 20,
        read_bytes: 64 << 20,
        spill_file_bytes: 0,
        spill_file_directory: None,
    };
    let volume = VolumeOptions {
        sync_decompress: [SyncDecompress::Auto, SyncDecompress::Always, SyncDecompress::Never][one_of(3)],
        read_around: one_of(2) == 0,
        prefetch: ["all", "none", "sequential+directory", "directory+rest-of-block"][one_of(4)].parse().expect("a set"),
        fetch_around_bytes: [0, 64 << 10][one_of(2)],
        readahead_alloc: [ReadaheadAlloc::BestEffort, ReadaheadAlloc::Wait][one_of(2)],
    };
    Options { engine, volume }
}

#[test]
fn reads_stay_right_while_switches_move_and_all_pages_come_back() {
    let patchwork = Arc::new(Patchwork::new(21, 4 << 20));
    let reader = reader(&patchwork, EngineOptions::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (reader, patchwork, is_over) = (&reader, &patchwork, &is_over);
            scope.spawn(move || {
                for round in 0.. {
                    for (offset, len) in patchwork.random_requests(100 + seed + 10 * round, 40) {
                        assert!(read(reader, offset, len) == patchwork.expected(offset, len), "{offset} {len}");
                    }
                    if is_over.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut random = Random::new(22);
        for _ in 0..150 {
            let wanted = any_options(&mut random);
            reader.engine().tune(&wanted.engine).expect("all of it can be moved");
            reader.volume().tune(&wanted.volume);
            let (engine, volume) = (reader.engine().options(), reader.volume().options());
            assert_eq!(Options { engine, volume }, wanted);
            thread::sleep(Duration::from_millis(2));
        }
        is_over.store(true, Relaxed);
    });
    reader.engine().tune(&EngineOptions { cache_bytes: 0, ..EngineOptions::default() }).expect("it can be moved");
    let deadline = Instant::now() + Duration::from_secs(60);
    let used = || {
        let pages = reader.engine().counters().pages;
        (pages.used_pages, pages.cache_pages)
    };
    while used() != (0, 0) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(used(), (0, 0));
    assert_eq!(reader.volume().counters().outstanding, 0);
}

#[test]
fn a_smaller_cache_keeps_what_it_has_room_for() {
    let patchwork = Arc::new(Patchwork::new(23, 4 << 20));
    let options = EngineOptions::default();
    let reader = reader(&patchwork, VolumeOptions { read_around: false, ..VolumeOptions::default() });
    for (offset, len) in patchwork.small_requests(24, 500) {
        read(&reader, offset, len);
    }
    let before = reader.engine().counters();
    let cache_bytes = before.pages.cache_pages / 2 * PAGE_BYTES as u64;
    reader.engine().tune(&EngineOptions { cache_bytes, ..options.clone() }).expect("it can be moved");
    let after = reader.engine().counters();
    assert!(after.pages.cache_pages <= after.pages.cache_pages_max, "{after:?}");
    assert!(after.pages.cache_pages > after.pages.cache_pages_max / 2, "{after:?}");
    assert_eq!(after.pages.cache_pages_max * PAGE_BYTES as u64, cache_bytes);
    let bigger = EngineOptions { cache_bytes: 64 << 20, ..options };
    reader.engine().tune(&bigger).expect("it can be moved");
    assert_eq!(reader.engine().counters().pages.cache_pages, after.pages.cache_pages, "growing drops nothing");
}

#[test]
fn a_cache_that_evicts_too_early_grows_and_shrinks_when_told() {
    let patchwork = Arc::new(Patchwork::new(25, 4 << 20));
    let (cache_bytes, cache_growth_bytes) = (1 << 20, 64 << 20);
    let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
    let options = EngineOptions { cache_bytes, ..EngineOptions::default() };
    let growing = EngineOptions { cache_growth_bytes, ..options.clone() };
    let requests = patchwork.small_requests(26, 2000);
    let decodes = |options: &EngineOptions| {
        let reader = reader(&patchwork, Options { engine: options.clone(), volume: volume.clone() });
        for _ in 0..4 {
            for (offset, len) in &requests {
                assert!(read(&reader, *offset, *len) == patchwork.expected(*offset, *len), "{offset} {len}");
            }
        }
        (reader.volume().counters().decodes, reader)
    };
    let ((fixed, _), (grown, reader)) = (decodes(&options), decodes(&growing));
    let pages = reader.engine().counters().pages;
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib_of =
        |name| memory.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let kib_of = |name| -> u64 { kib_of(name).unwrap_or(0) };
    // A machine of which programs use most of the memory already.
    if kib_of("MemAvailable:") < kib_of("MemTotal:") / 2 {
        return skip::skipped("programs use most of this machine's memory, so the cache may not grow");
    }
    assert!(pages.cache_pages_max * PAGE_BYTES as u64 > cache_bytes && grown < fixed / 2, "{fixed} {grown} {pages:?}");
    reader.engine().tune(&options).expect("it can be moved");
    let pages = reader.engine().counters().pages;
    assert_eq!(pages.cache_pages_max * PAGE_BYTES as u64, cache_bytes);
    assert!(pages.cache_pages <= pages.cache_pages_max, "{pages:?}");
}

#[test]
fn a_block_that_was_being_decoded_does_not_outlive_its_cache() {
    let patchwork = Arc::new(Patchwork::new(29, 1 << 20));
    let slow = Arc::new(SlowSource::new(patchwork.source(), Duration::from_millis(100)));
    let options = EngineOptions::default();
    let volume = VolumeOptions { read_around: false, sync_decompress: SyncDecompress::Never, ..Default::default() };
    let reader = Options::from(volume).reader(&patchwork, slow);
    let requests = patchwork.small_requests(30, 200);
    let (sender, answers) = mpsc::channel();
    for (offset, len) in &requests {
        let sender = sender.clone();
        reader.read_then(Nid(0), *offset, *len, move |result| sender.send(result.is_ok()).expect("somebody waits"));
    }
    drop(sender);
    // Repeatedly, so that some decodes are caught between allocating their pages and their end.
    for cache_bytes in [1 << 20, 2 << 20, 0].into_iter().cycle() {
        let is_over = reader.volume().counters().outstanding == 0;
        reader.engine().tune(&EngineOptions { cache_bytes, ..options.clone() }).expect("it can be moved");
        if is_over && cache_bytes == 0 {
            break;
        }
    }
    assert!(answers.iter().all(|is_ok| is_ok));
    assert_eq!(reader.engine().counters().pages.cache_pages, 0);
}

#[test]
fn priorities_and_thread_modes_change_at_runtime() {
    let patchwork = Arc::new(Patchwork::new(25, 1 << 20));
    let reader = reader(&patchwork, EngineOptions { priority: Priority::Normal, ..EngineOptions::default() });
    let engine = reader.engine();
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: {:?}", engine.worker_status());
            thread::sleep(Duration::from_millis(1));
        }
    };
    for priority in [Priority::Nice(7), Priority::Nice(9), Priority::Normal] {
        engine.tune(&EngineOptions { priority, ..engine.options() }).expect("it can be moved");
        // A thread that has just started schedules itself.
        wait_for("the priority", &|| {
            engine.worker_status().iter().all(|worker| worker.asked == priority && worker.got == priority)
        });
    }
    for (workers, expected) in [(WorkerMode::Shared, "floe-dec/u0"), (WorkerMode::PerCpu, "floe-dec/")] {
        engine.tune(&EngineOptions { workers, ..engine.options() }).expect("it can be moved");
        wait_for("the threads", &|| engine.worker_status().iter().any(|worker| worker.name.starts_with(expected)));
    }
    engine.tune(&EngineOptions { workers: WorkerMode::Inline, ..engine.options() }).expect("it can be moved");
    assert!(engine.worker_status().iter().all(|worker| !worker.name.starts_with("floe-dec/")));
}

#[test]
fn options_that_cannot_change_are_refused() {
    let patchwork = Arc::new(Patchwork::new(27, 100_000));
    let single_lock = MetadataCacheDesign::SingleLock { entry_count: 8 };
    for (from, to) in [
        (single_lock, MetadataCacheDesign::Sharded { block_count: 8 }),
        (MetadataCacheDesign::Sharded { block_count: 8 }, single_lock),
        (single_lock, MetadataCacheDesign::SingleLock { entry_count: 9 }),
    ] {
        let options = EngineOptions { metadata_cache: from, ..EngineOptions::default() };
        let reader = reader(&patchwork, options.clone());
        let wanted = EngineOptions { metadata_cache: to, ..options.clone() };
        assert_eq!(reader.engine().tune(&wanted), Err(TuneError::MetadataCacheDesign), "{from} {to}");
        assert_eq!(reader.engine().options(), options);
    }
    let reader = reader(&patchwork, EngineOptions::default());
    let much = EngineOptions { cache_bytes: 1 << 60, ..EngineOptions::default() };
    assert_eq!(reader.engine().tune(&much), Err(TuneError::CacheBytes));
    assert_eq!(reader.engine().options(), EngineOptions::default());
}
