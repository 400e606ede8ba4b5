//! Each kind of prefetch does its work, and does none where it is switched off.

#[expect(dead_code, reason = "not every test counts blocks")]
mod patchwork;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Engine, EngineOptions, ListedFile, PageCache, PrefetchKind, PrefetchSet, Reader};
use floe_image::{ImageSource, Nid};
use patchwork::Patchwork;

/// A page cache that counts what it takes.
struct Taking(Arc<AtomicU64>);

impl PageCache for Taking {
    fn store(&self, _: Nid, _: u64, bytes: &[u8]) -> usize {
        self.0.fetch_add(bytes.len() as u64, Relaxed);
        bytes.len()
    }

    fn page_bytes(&self) -> u64 {
        4096
    }
}

/// A source that counts the bytes that may leave the page cache.
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

/// What a workload had prefetched.
#[derive(Clone, Copy, Debug)]
struct Prefetched {
    ahead_blocks: u64,
    stored_bytes: u64,
    dropped_bytes: u64,
}

/// A workload that one kind of prefetch is for.
fn read(reader: &Reader, kind: PrefetchKind) {
    let one = |nid: u64, offset: u64, len: u32| {
        let (sender, answer) = mpsc::channel();
        reader.read_then(Nid(nid), offset, len, move |result| drop(sender.send(result.map(<[u8]>::len))));
        answer.recv().expect("an answer").expect("a sound image");
    };
    match kind {
        PrefetchKind::Sequential | PrefetchKind::DropBehind => {
            for offset in (0..8 << 20).step_by(16 << 10) {
                one(0, offset, 16 << 10);
                thread::sleep(Duration::from_micros(200));
            }
        }
        PrefetchKind::Directory => {
            let files: Vec<_> = (1..200).map(|nid| ListedFile { nid: Nid(nid), size: 8192 }).collect();
            reader.note_listed(Nid(1000), true, &files);
            (1..200).for_each(|nid| one(nid, 0, 4096));
        }
        PrefetchKind::Clustered => {
            for region in 0..20 {
                [3, 1, 2].into_iter().for_each(|page| one(0, region * (128 << 10) + page * 8192, 4096));
            }
        }
        PrefetchKind::RestOfBlock => (0..100).for_each(|index| one(0, index * 40_960, 4096)),
    }
}

fn prefetched(kind: PrefetchKind, set: PrefetchSet) -> Prefetched {
    let patchwork = Arc::new(Patchwork::new(61, 9 << 20));
    let (stored, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let source = Arc::new(Dropping { source: patchwork.source(), dropped: Arc::clone(&dropped) });
    let options = EngineOptions { prefetch: set, ..EngineOptions::default() };
    let reader = Reader::new(Engine::new(vec![source], &options).expect("an engine"), Arc::clone(&patchwork) as _);
    reader.set_page_cache(Box::new(Taking(Arc::clone(&stored))));
    read(&reader, kind);
    let now = || Prefetched {
        ahead_blocks: reader.read_around_counters().ahead_blocks,
        stored_bytes: stored.load(Relaxed),
        dropped_bytes: dropped.load(Relaxed),
    };
    // Prefetch is asynchronous.
    let deadline = Instant::now() + Duration::from_secs(10);
    while set.has(kind) && !does(kind, now()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    now()
}

fn does(kind: PrefetchKind, prefetched: Prefetched) -> bool {
    match kind {
        PrefetchKind::Sequential => prefetched.ahead_blocks > 30,
        PrefetchKind::Directory | PrefetchKind::Clustered | PrefetchKind::RestOfBlock => {
            prefetched.stored_bytes > 100_000
        }
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
