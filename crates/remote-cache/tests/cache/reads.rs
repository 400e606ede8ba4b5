//! Cold and warm reads, with and without the server.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    AheadReason, CHUNK_BYTES, CachedSource, Cause, FetchError, FetchFault, ObjectKey, RangeFetcher, SECTION_BYTES,
    SourceOptions,
};
use floe_testkit::{Random, check_rows};

use crate::scene::{Kind, Object, Scene, Server, fetches_by_chunk, open, open_with, read_all};

/// Lengths at and around block and chunk boundaries.
const LENGTHS: [usize; 8] = [1, 511, 4096, 262_144, 262_145, 700_001, 1 << 20, (3 << 20) + 77];

#[test]
fn reads_return_the_served_bytes_and_fetch_them_once() {
    let rows: Vec<(Kind, usize)> = Kind::ALL.into_iter().flat_map(|kind| LENGTHS.map(|len| (kind, len))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(kind, len)| {
            let object = Object::new(*kind, *len, 7);
            let server = Server::of(&object);
            let scene = Scene::new();
            let cold = open(&scene.cache(), &object, &server).expect("it opens");
            assert_eq!(cold.len(), object.key.data_len());
            assert!(read_all(&cold).expect("cold") == object.data(), "cold");
            let requests = server.requests();
            assert!(read_all(&cold).expect("warm") == object.data(), "warm");
            assert!(cold.is_whole());
            assert_eq!(server.requests(), requests, "nothing is fetched again");
            let counts = cold.counts();
            assert_eq!(
                (counts.bytes.demand, counts.misses),
                (object.key.data_len(), object.data_chunks() + tree_misses(&counts))
            );
            // Another process without the server, and then one after a reboot.
            server.set_down(true);
            for boot in ["first boot", "second boot", "second boot"] {
                let offline = open(&scene.cache_of(1 << 30, boot), &object, &server).expect("it opens offline");
                assert!(read_all(&offline).expect("offline") == object.data(), "{boot}");
                assert_eq!(offline.counts().requests.total(), 0);
            }
            assert_eq!(server.requests(), requests);
            assert!(scene.notices.lock().expect("no panic").is_empty());
            Vec::new()
        },
    );
}

/// Chunks of the hash tree are missed too; each was fetched once.
fn tree_misses(counts: &floe_remote_cache::CacheCounts) -> u64 {
    counts.bytes.tree.div_ceil(floe_remote_cache::TREE_CHUNK_BYTES)
}

#[test]
fn reads_past_the_end_are_refused() {
    let object = Object::new(Kind::Table, 1000, 1);
    let source = open(&Scene::new().cache(), &object, &Server::of(&object)).expect("it opens");
    for (offset, len, is_inside) in
        [(0, 1000, true), (1000, 0, true), (0, 1001, false), (999, 2, false), (1001, 0, false), (u64::MAX, 1, false)]
    {
        for read in [source.read_at(offset, &mut vec![0; len]), source.try_read_at(offset, &mut vec![0; len]).map(drop)]
        {
            assert_eq!(read.map_err(|error| error.kind()).err(), (!is_inside).then_some(io::ErrorKind::UnexpectedEof));
        }
    }
}

#[test]
fn only_proven_chunks_are_read_without_waiting() {
    let object = Object::new(Kind::Verity, 600_000, 1);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    let requests = server.requests();
    let mut output = vec![0; 5000];
    assert!(!source.try_read_at(260_000, &mut output).expect("inside"));
    assert_eq!(server.requests(), requests, "a read at hand fetches nothing");
    source.read_at(260_000, &mut output).expect("it is fetched");
    output.fill(0);
    assert!(source.try_read_at(260_000, &mut output).expect("inside"));
    assert_eq!(output, object.data()[260_000..265_000]);
    assert!(!source.try_read_at(530_000, &mut output).expect("inside"), "the third section is absent");
    let other = open(&scene.cache(), &object, &server).expect("it opens");
    assert!(!other.try_read_at(260_000, &mut output).expect("inside"), "another process has proven nothing yet");
    other.read_at(260_000, &mut [0]).expect("it is proven");
    assert!(other.try_read_at(260_000, &mut output[..2]).expect("inside"));
}

#[test]
fn present_chunks_of_a_section_are_proven_together() {
    let object = Object::new(Kind::Verity, 600_000, 1);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    source.read_at(0, &mut vec![0; 300_000]).expect("it is fetched");
    let other = open(&scene.cache(), &object, &server).expect("it opens");
    let mut output = [0; 100];
    assert!(!other.try_read_at(200_000, &mut output).expect("inside"), "another process has proven nothing yet");
    other.read_at(5, &mut [0]).expect("the first chunk is proven");
    assert!(other.try_read_at(200_000, &mut output).expect("inside"));
    assert_eq!(output, object.data()[200_000..200_100]);
    assert!(!other.try_read_at(280_000, &mut output).expect("inside"), "the next section is not");
}

#[test]
fn one_request_fetches_adjacent_missing_chunks() {
    let object = Object::new(Kind::Table, 2 << 20, 1);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    source.read_at(3 << 18, &mut [0]).expect("the fourth chunk");
    source.read_at(0, &mut vec![0; 2 << 20]).expect("all");
    let ranges: Vec<_> = server.fetched.lock().expect("no panic").iter().map(|(range, _)| *range).collect();
    let expected = [(3, 4), (0, 3), (4, 8)].map(|(first, end)| ByteRange::between(first << 18, end << 18));
    assert_eq!(ranges, expected);
}

#[test]
fn threads_share_one_flight() {
    let object = Object::new(Kind::Verity, 3 << 20, 5);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let slow = |_, bytes| {
        thread::sleep(Duration::from_millis(5));
        Ok(bytes)
    };
    server.set_lie(Some(Arc::new(slow)));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    thread::scope(|scope| {
        for seed in 0..8 {
            let (source, object) = (&source, &object);
            scope.spawn(move || {
                let (right, errors) = crate::scene::read_parts(source, object.data(), &mut Random::new(seed), 40);
                assert!(right == 40, "{errors:?}");
            });
        }
    });
    let fetched = server.fetched.lock().expect("no panic");
    let counts = fetches_by_chunk(fetched.iter().map(|(range, _)| *range), &object.key);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let tree: Vec<_> = fetched.iter().filter(|(_, cause)| *cause == Cause::Tree).collect();
    let distinct: BTreeSet<u64> = tree.iter().map(|(range, _)| range.offset()).collect();
    assert_eq!(distinct.len(), tree.len(), "{tree:?}");
}

#[test]
fn hints_are_fetched_in_the_background_and_once() {
    let object = Object::new(Kind::Verity, 5 << 20, 5);
    let (scene, server) = (Scene::new(), Server::of(&object));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    source.will_need(0, 100);
    source.will_need(1 << 20, 3 << 20);
    source.will_need(4 << 20, u64::MAX);
    source.will_need(u64::MAX, 7);
    let started = Instant::now();
    while source.counts().bytes.prefetch < (4 << 20) + CHUNK_BYTES {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", source.counts());
        thread::sleep(Duration::from_millis(2));
    }
    assert!(read_all(&source).expect("all of it") == object.data());
    let fetched = server.fetched.lock().expect("no panic");
    let counts = fetches_by_chunk(fetched.iter().map(|(range, _)| *range), &object.key);
    assert_eq!((counts.len(), counts.values().max()), (320, Some(&1)));
    assert_eq!(source.counts().bytes.demand, (1 << 20) - CHUNK_BYTES, "only the reader requested the rest");
}

#[test]
fn sequential_readers_are_fetched_ahead() {
    for kind in Kind::ALL {
        let object = Object::new(kind, 40 * SECTION_BYTES as usize, 35);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let source = open_with(&scene.cache(), &object, &server, SourceOptions::default()).expect("it opens");
        let read = |section: u64| {
            source.read_at(section * SECTION_BYTES, &mut vec![0; SECTION_BYTES as usize]).expect("read");
        };
        for section in [30, 20, 10] {
            read(section);
        }
        assert_eq!(server.data_bytes(), 3 * SECTION_BYTES, "{kind:?}: jumps fetch what is read");
        read(0);
        read(1);
        // Sections 2 and 3 come without being read.
        let started = Instant::now();
        while server.data_bytes() < 7 * SECTION_BYTES {
            assert!(started.elapsed() < Duration::from_secs(60), "{} bytes", server.data_bytes());
            thread::yield_now();
        }
        assert!(read_all(&source).expect("all of it") == object.data());
        assert_eq!(server.data_bytes(), 40 * SECTION_BYTES, "{kind:?}: each chunk comes once");
    }
}

#[test]
fn scattered_reads_fetch_what_they_need_and_dense_regions_are_completed() {
    const UNIT: u64 = 16 << 10;
    for kind in [Kind::Verity, Kind::SmallVerity, Kind::Tree, Kind::Location] {
        let object = Object::new(kind, 8 << 20, 36);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let source = open_with(&scene.cache(), &object, &server, SourceOptions::default()).expect("it opens");
        let read = |offset: u64| {
            let mut output = [0; 100];
            source.read_at(offset, &mut output).expect("read");
            assert!(output == object.data()[offset as usize..][..100], "{kind:?}, {offset}");
        };
        for offset in [5 << 20, (3 << 20) + 50_000, 0, (7 << 20) + 4096, (6 << 20) - 5000] {
            read(offset);
        }
        assert_eq!(server.data_bytes(), 5 * UNIT, "{kind:?}");
        // Two of eight units of a region are read; the rest of it comes by itself.
        [128, 130].into_iter().for_each(|unit| read(unit * UNIT));
        let started = Instant::now();
        while !source.has(ByteRange::new(128 * UNIT, 8 * UNIT)) {
            assert!(started.elapsed() < Duration::from_secs(60), "{kind:?}: {} bytes", server.data_bytes());
            thread::yield_now();
        }
        assert_eq!(server.data_bytes(), 13 * UNIT, "{kind:?}: nothing else");
        let counts = source.counts().ahead[AheadReason::Region.index()];
        assert_eq!((counts.fetched_bytes, counts.read_bytes), (6 * UNIT, 0), "{kind:?}");
        read(131 * UNIT);
        assert_eq!(source.counts().ahead[AheadReason::Region.index()].read_bytes, UNIT, "{kind:?}");
        assert!(read_all(&source).expect("all of it") == object.data());
        assert_eq!(server.data_bytes(), 8 << 20, "{kind:?}: each chunk once");
    }
}

#[test]
fn one_hint_is_fetched_over_several_connections_and_in_full() {
    let object = Object::new(Kind::Table, 6 << 20, 6);
    let (scene, server) = (Scene::new(), Server::of(&object));
    // Each request waits until another one is in flight, so a single connection would never make progress.
    let (under_way, met) = (Arc::new((Mutex::new(0_u64), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let lie = {
        let (under_way, met) = (Arc::clone(&under_way), Arc::clone(&met));
        move |range: ByteRange, bytes| {
            if range.len() < 1 << 20 {
                return Ok(bytes);
            }
            let mut count = under_way.0.lock().expect("no panic");
            *count += 1;
            under_way.1.notify_all();
            let waited = under_way.1.wait_timeout_while(count, Duration::from_secs(60), |count| *count < 2);
            met.fetch_add(usize::from(!waited.expect("no panic").1.timed_out()), Ordering::SeqCst);
            Ok(bytes)
        }
    };
    server.set_lie(Some(Arc::new(lie)));
    let source = open(&scene.cache(), &object, &server).expect("it opens");
    source.will_need(0, 6 << 20);
    let started = Instant::now();
    while !source.is_whole() {
        assert!(started.elapsed() < Duration::from_secs(200), "{:?}", source.counts());
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!((met.load(Ordering::SeqCst), source.counts().requests.prefetch), (6, 6));
}

#[test]
fn an_outage_is_an_error_and_heals() {
    for kind in Kind::ALL {
        let object = Object::new(kind, 600_000, 2);
        let (scene, server) = (Scene::new(), Server::of(&object));
        let source = open(&scene.cache(), &object, &server).expect("it opens");
        source.read_at(0, &mut [0; 10]).expect("the first chunk");
        server.set_down(true);
        source.read_at(1000, &mut [0; 10]).expect("cached bytes stay readable");
        let error = source.read_at(300_000, &mut [0; 10]).expect_err("the second is not there");
        assert_eq!(FetchError::fault_of(&error), FetchFault::Outage, "{kind:?}: {error}");
        server.set_down(false);
        assert!(read_all(&source).expect("all of it") == object.data(), "{kind:?}");
    }
}

/// An object of this length whose server is out of reach.
struct Unreachable {
    len: u64,
}

impl RangeFetcher for Unreachable {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        "https://example.org/a".to_owned()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<Bytes> {
        Err(FetchError::new(FetchFault::Outage, format!("bytes {range}: out of reach")).into())
    }
}

#[test]
fn objects_that_cannot_be_trusted_are_refused() {
    let scene = Scene::new();
    let cache = scene.cache();
    let refuse = |key: ObjectKey, len: u64, require_verified: bool, expected: &str| {
        let fetcher = Arc::new(Unreachable { len });
        let options = SourceOptions { require_verified, ..SourceOptions::default() };
        let error = CachedSource::open(Some(&cache), key, fetcher, options).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    };
    let (plain, table) = (Object::new(Kind::Location, 1000, 1), Object::new(Kind::Table, 1000, 1));
    refuse(plain.key.clone(), 1000, true, "its bytes cannot be verified, but verification is required");
    refuse(plain.key, 999, false, "it has 999 bytes according to the server, not 1000");
    refuse(
        ObjectKey { len: 1001, ..table.key },
        1001,
        false,
        "it has 1000 bytes according to the digest table, not 1001",
    );
    let long = Object::new(Kind::Location, 1, 1);
    refuse(ObjectKey { len: u64::MAX, ..long.key }, u64::MAX, false, "longer than 4 TiB");
    let tree = Object::new(Kind::Verity, 1000, 1);
    refuse(ObjectKey { len: 4096, ..tree.key.clone() }, 4096, false, "the object ends before its dm-verity tree");
    refuse(tree.key.clone(), tree.key.len, false, "out of reach");
}

#[test]
fn reads_work_without_a_cache() {
    for kind in Kind::ALL {
        let object = Object::new(kind, 3 << 20, 2);
        let server = Server::of(&object);
        let fetcher = Arc::clone(&server) as Arc<dyn floe_remote_cache::RangeFetcher>;
        let source = CachedSource::open(None, object.key.clone(), fetcher, SourceOptions::default()).expect("it opens");
        assert!(read_all(&source).expect("all of it") == object.data());
        assert_eq!(server.data_bytes(), object.key.data_len(), "{kind:?}: parts of a chunk cost one fetch");
    }
}

#[test]
fn names_and_blobs_are_remembered() {
    let scene = Scene::new();
    let (url, memory) = ("oci://example.org/a:latest", "{\"digest\":\"sha256:77\"}\nsecond line");
    let manifest = b"manifest";
    let digest = floe_remote_cache::Digest::of(manifest);
    scene.cache().remember(url, memory);
    scene.cache().keep_blob(&digest, manifest);
    let cache = scene.cache_of(1 << 30, "another boot");
    assert_eq!(cache.recall(url).as_deref(), Some(memory));
    assert_eq!(cache.recall("oci://example.org/b:latest"), None);
    assert_eq!(cache.blob(&digest, 100).as_deref(), Some(&manifest[..]));
    assert_eq!(cache.blob(&digest, 3), None, "longer than it may be");
    cache.keep_blob(&digest, b"manifesto");
    assert_eq!(cache.blob(&digest, 100), None, "it is not what its name says");
}

#[test]
fn bytes_verified_by_one_root_never_answer_another() {
    let (scene, good, evil) =
        (Scene::new(), Object::new(Kind::Verity, 600_000, 1), Object::new(Kind::Verity, 600_000, 2));
    let cache = scene.cache();
    let evil_source = open(&cache, &evil, &Server::of(&evil)).expect("it opens");
    assert!(read_all(&evil_source).expect("evil") == evil.data());
    assert_eq!(good.key.len, evil.key.len);
    let source = open(&cache, &good, &Server::of(&good)).expect("it opens");
    assert!(read_all(&source).expect("good") == good.data());
}
