//! Warm reads take their pages from the pool: they make no large allocations and few small ones.

#[expect(dead_code, reason = "not every test counts blocks")]
mod patchwork;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_engine::{EngineOptions, Reader, SyncDecompress, VolumeOptions, WorkerMode};
use floe_image::{ImageSource, Nid};
use floe_testkit::{AllocationCounts, CountingAllocator, SlowSource};
use patchwork::{Options, Patchwork};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Executes `requests` one after the other, and returns the allocations of that time.
fn allocations(reader: &Reader, requests: &[(u64, u32)]) -> AllocationCounts {
    let answered = Arc::new(AtomicUsize::new(0));
    let before = ALLOCATOR.counts();
    for (index, (offset, len)) in requests.iter().enumerate() {
        let told = Arc::clone(&answered);
        let main = thread::current();
        reader.read_then(Nid(0), *offset, *len, move |result| {
            assert!(result.is_ok());
            told.fetch_add(1, Relaxed);
            main.unpark();
        });
        while answered.load(Relaxed) <= index {
            thread::park_timeout(Duration::from_millis(1));
        }
    }
    let after = ALLOCATOR.counts();
    AllocationCounts { small: after.small - before.small, large: after.large - before.large }
}

// A single test, so that no other test allocates at the same time.
#[test]
fn warm_reads_allocate_nothing_large() {
    let patchwork = Arc::new(Patchwork::new(51, 4 << 20));
    let memory = || patchwork.source();
    let slow = || Arc::new(SlowSource::new(patchwork.source(), Duration::ZERO)) as Arc<dyn ImageSource>;
    let decompress = |sync_decompress| Options::from(VolumeOptions { sync_decompress, ..VolumeOptions::default() });
    let inline = EngineOptions { workers: WorkerMode::Inline, ..EngineOptions::default() };
    let cacheless = EngineOptions { cache_bytes: 0, ..EngineOptions::default() };
    for (name, options, source, small_max_each) in [
        ("at hand", decompress(SyncDecompress::Always), memory(), 1),
        ("inline", inline.into(), memory(), 1),
        ("on the workers", decompress(SyncDecompress::Never), memory(), 10),
        ("from a source that is waited for", Options::default(), slow(), 10),
        ("without a cache", cacheless.into(), slow(), 10),
    ] {
        let volume = VolumeOptions { read_around: false, ..options.volume };
        let reader = Options { volume, ..options }.reader(&patchwork, source);
        let requests = patchwork.random_requests(52, 400);
        // Twice, to warm up the workspaces of threads that started late.
        allocations(&reader, &requests);
        allocations(&reader, &requests);
        let counts = allocations(&reader, &requests);
        let small_each = counts.small as f64 / requests.len() as f64;
        eprintln!("{name}: {} large, {small_each:.2} small for each read", counts.large);
        assert_eq!(counts.large, 0, "{name}");
        assert!(small_each <= f64::from(small_max_each), "{name}: {small_each}");
    }
}
