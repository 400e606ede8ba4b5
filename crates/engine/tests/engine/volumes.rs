//! Many volumes in one engine.

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Blocking, Engine, EngineOptions, Reader, Sink, SyncDecompress, VolumeOptions};
use floe_image::{ByteRange, DeviceId, Error, ImageSource, Nid, SourceIdentity, SourceOrigin};
use floe_testkit::{HalfCachedSource, HeldSource, SlowSource, TruncatedSource};

use crate::patchwork::{COSTLY_BLOCK_BYTES, Patchwork};

const BLOCK: u64 = COSTLY_BLOCK_BYTES as u64;

fn engine(options: &EngineOptions) -> Arc<Engine> {
    Engine::new(options).expect("an engine")
}

fn attach(engine: &Arc<Engine>, patchwork: &Arc<Patchwork>, source: Arc<dyn ImageSource>) -> Reader {
    let options = VolumeOptions { read_around: false, ..VolumeOptions::default() };
    Reader::new(engine.attach(vec![source], &options), Arc::clone(patchwork) as _)
}

type Answers = mpsc::Receiver<(u64, u32, Result<Vec<u8>, Error>)>;

/// Executes all requests at once.
fn start(reader: &Reader, requests: impl IntoIterator<Item = (u64, u32)>) -> Answers {
    let (sender, answers) = mpsc::channel();
    for (offset, len) in requests {
        let sender = sender.clone();
        reader.read_then(Nid(0), offset, len, move |result| {
            // A test that has failed waits for no answer.
            let _ = sender.send((offset, len, result.map(<[u8]>::to_vec)));
        });
    }
    answers
}

fn check(patchwork: &Patchwork, answers: Answers) {
    for (offset, len, answer) in answers {
        let answer = answer.unwrap_or_else(|error| panic!("{offset} {len}: {error}"));
        assert!(answer == patchwork.expected(offset, len), "{offset} {len}");
    }
}

/// A source of an image that other sources may also contain.
struct Identified(Arc<dyn ImageSource>, &'static str);

impl ImageSource for Identified {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, output)
    }

    fn identity(&self) -> Option<SourceIdentity> {
        Some(SourceIdentity { origin: SourceOrigin::Digest(self.1.to_owned()), offset: 0, len: self.len() })
    }
}

#[test]
fn reads_of_many_volumes_at_once_are_exact() {
    for (workers, sync_decompress) in [("per-cpu", SyncDecompress::Auto), ("shared", SyncDecompress::Never)] {
        let workers = workers.parse().expect("a mode");
        let engine = engine(&EngineOptions { cache_bytes: 2 << 20, workers, ..EngineOptions::default() });
        let volumes: Vec<_> = (0..12)
            .map(|seed| {
                let patchwork = Arc::new(Patchwork::new(900 + seed, 1 << 20));
                let source: Arc<dyn ImageSource> = match seed % 3 {
                    0 => patchwork.source(),
                    1 => Arc::new(HalfCachedSource::new(patchwork.source())),
                    _ => Arc::new(SlowSource::new(patchwork.source(), Duration::ZERO)),
                };
                let volume = engine.attach(vec![source], &VolumeOptions { sync_decompress, ..Default::default() });
                (Reader::new(volume, Arc::clone(&patchwork) as _), patchwork)
            })
            .collect();
        for round in 0..4 {
            let started = volumes.iter().map(|(reader, patchwork)| start(reader, patchwork.random_requests(round, 40)));
            let started: Vec<_> = started.collect();
            volumes.iter().zip(started).for_each(|((_, patchwork), answers)| check(patchwork, answers));
        }
    }
}

/// A page cache that takes everything.
struct Taking;

impl Sink for Taking {
    fn push(&self, _: Nid, _: u64, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn page_bytes(&self) -> u64 {
        4096
    }
}

#[test]
fn a_source_that_does_not_answer_delays_no_other_volume() {
    let engine = engine(&EngineOptions { read_bytes: 16 << 20, ..EngineOptions::default() });
    let patchwork = Arc::new(Patchwork::costly(91, 96));
    let stuck: Vec<_> = (0..3)
        .map(|_| {
            let held = Arc::new(HeldSource::new(patchwork.source()));
            let volume = engine.attach(vec![Arc::clone(&held) as _], &VolumeOptions::default());
            let reader = Reader::new(volume, Arc::clone(&patchwork) as _);
            reader.set_sink(Box::new(Taking));
            held.hold();
            // All its threads, its part of the memory, and the threads of prefetch wait for the source.
            let answers = start(&reader, (0..96).flat_map(|block| [(block * BLOCK, 61_440), (block * BLOCK + 9, 500)]));
            let data = reader.clone();
            reader.push_ahead(Nid(0), std::iter::once(ByteRange::new(0, 1 << 20)));
            (held, data, answers)
        })
        .collect();
    let (truncated, sound) = (TruncatedSource::new(patchwork.source(), 1 << 20), patchwork.source());
    let slow = |source| Arc::new(SlowSource::new(source, Duration::ZERO)) as Arc<dyn ImageSource>;
    let broken = attach(&engine, &patchwork, slow(Arc::new(truncated)));
    let failures = start(&broken, (0..96).map(|block| (block * BLOCK, 61_440)));
    for _ in 0..4 {
        let reader = attach(&engine, &patchwork, slow(Arc::clone(&sound)));
        reader.set_sink(Box::new(Taking));
        check(
            &patchwork,
            start(&reader, (0..96).flat_map(|block| [(block * BLOCK, 61_440), (block * BLOCK + 9, 500)])),
        );
        // Its prefetch runs, too, once the thread that waits is known to be stuck.
        let deadline = Instant::now() + Duration::from_secs(50);
        while reader.read_around_counters().stored_bytes == 0 {
            assert!(Instant::now() < deadline, "nothing is pushed");
            reader.push_ahead(Nid(0), std::iter::once(ByteRange::new(0, 4096)));
            thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(failures.iter().any(|(_, _, answer)| answer.is_err()));
    assert!(stuck.iter().all(|(held, _, _)| held.is_held()), "the others did not wait for these");
    for (held, _, answers) in stuck {
        held.release();
        check(&patchwork, answers);
    }
}

#[test]
fn volumes_of_equal_content_decode_each_block_once() {
    let engine = engine(&EngineOptions::default());
    let patchwork = Arc::new(Patchwork::costly(92, 24));
    let source = |name| Arc::new(Identified(patchwork.source(), name)) as Arc<dyn ImageSource>;
    let parts = || (0..24).map(|block| (block * BLOCK + 100, 500));
    let first = attach(&engine, &patchwork, source("one"));
    check(&patchwork, start(&first, parts()));
    let (second, other) = (attach(&engine, &patchwork, source("one")), attach(&engine, &patchwork, source("another")));
    for (reader, expected) in [(&first, 24), (&second, 0), (&other, 24)] {
        check(&patchwork, start(reader, parts()));
        assert_eq!(reader.volume().counters().decodes, expected);
    }
    // A volume that is closed takes nothing from one of the same content.
    first.volume().close();
    check(&patchwork, start(&second, parts()));
    drop(first);
    check(&patchwork, start(&second, parts()));
    assert_eq!(second.volume().counters().decodes, 0);
    // A closed file may be another one with the same numbers later.
    let third = attach(&engine, &patchwork, source("one"));
    check(&patchwork, start(&third, parts()));
    assert_eq!(third.volume().counters().decodes, 24);
}

#[test]
fn nothing_stays_in_the_caches_of_volumes_that_are_gone() {
    let engine = engine(&EngineOptions::default());
    let patchwork = Arc::new(Patchwork::costly(93, 24));
    let kept = attach(&engine, &patchwork, patchwork.source());
    check(&patchwork, start(&kept, [(100, 500)]));
    let pages = || {
        let pages = engine.counters().pages;
        (pages.used_pages, pages.cache_pages)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait_for = |expected| {
        while pages() != expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pages(), expected);
    };
    wait_for((0, BLOCK / 4096));
    for round in 0..20 {
        let reader = attach(&engine, &patchwork, patchwork.source());
        let stored = reader.volume().block_reader(Blocking::Allowed);
        stored.stored(DeviceId(0), 0, 1000).expect("inside");
        assert!(engine.counters().stored_metadata.weight > 0);
        let answers = start(&reader, (0..24).map(|block| (block * BLOCK + 100, 500)));
        if round % 2 == 0 {
            check(&patchwork, answers);
            reader.volume().close();
            assert!(reader.read(Nid(0), 100, &mut [0; 10]).is_err(), "the image is closed");
        }
        drop((reader, stored));
        // Reads in progress end.
        wait_for((0, BLOCK / 4096));
        assert_eq!(engine.counters().stored_metadata.weight, 0);
    }
    check(&patchwork, start(&kept, [(100, 500)]));
    assert_eq!(kept.volume().counters().decodes, 1);
}

#[test]
fn a_scan_of_one_volume_leaves_another_its_floor() {
    let engine = engine(&EngineOptions { cache_bytes: 64 * BLOCK, ..EngineOptions::default() });
    let (small, large) = (Arc::new(Patchwork::costly(94, 12)), Arc::new(Patchwork::costly(95, 200)));
    let [small_reader, large_reader] = [&small, &large].map(|patchwork| attach(&engine, patchwork, patchwork.source()));
    check(&small, start(&small_reader, (0..12).map(|block| (block * BLOCK + 100, 500))));
    for round in 0..3 {
        for block in 0..200 {
            check(&large, start(&large_reader, [(block * BLOCK + 100 + round, 500)]));
        }
    }
    assert!(engine.counters().blocks.evictions > 400, "the scan has evicted its own blocks");
    for block in 0..12 {
        let mut bytes = [0; 500];
        assert_eq!(small_reader.read_cached(Nid(0), block * BLOCK + 100, &mut bytes), Some(500), "block {block}");
        assert!(bytes == small.expected(block * BLOCK + 100, 500));
    }
}
