//! A thread that could not be started is started later.

#[expect(dead_code, reason = "not every test counts blocks")]
mod patchwork;

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_engine::{EngineOptions, SyncDecompress, VolumeOptions};
use floe_image::Nid;
use patchwork::{COSTLY_BLOCK_BYTES, Options, Patchwork};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The address space that is left: less than the stack of a thread.
const LEFT_BYTES: u64 = 1 << 20;

/// How long the test waits for the thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address space of this process in bytes.
fn address_space_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Runs `work` while no thread can be started.
fn without_threads<T>(work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::As);
    let current = Some(address_space_bytes() + LEFT_BYTES);
    setrlimit(Resource::As, Rlimit { current, ..before }).expect("a lower limit");
    assert!(thread::Builder::new().spawn(|| {}).is_err(), "a thread was started");
    let result = work();
    setrlimit(Resource::As, before).expect("the former limit");
    result
}

#[test]
fn pages_are_backed_ahead_once_a_thread_can_be_started() {
    let patchwork = Arc::new(Patchwork::costly(1, 64));
    let options = Options {
        engine: EngineOptions { cache_bytes: 8 << 20, reserved_pages: 256, ..EngineOptions::default() },
        volume: VolumeOptions { sync_decompress: SyncDecompress::Always, ..VolumeOptions::default() },
    };
    let reader = options.reader(&patchwork, patchwork.source());
    let engine = reader.engine();
    let read = |block: u64| {
        let (offset, mut bytes) = (block * u64::from(COSTLY_BLOCK_BYTES) + 100, [0; 500]);
        assert_eq!(reader.read(Nid(0), offset, &mut bytes).ok(), Some(bytes.len()), "block {block}");
        assert_eq!(bytes, patchwork.expected(offset, 500), "block {block}");
    };
    let has_thread = || engine.worker_status().iter().any(|worker| worker.name == "floe-around");
    // The memory of a decoder is there from now on.
    read(0);
    without_threads(|| (1..32).for_each(read));
    assert!(!has_thread() && engine.counters().pages.ahead_pages == 0);
    let began = Instant::now();
    for block in 32..64 {
        read(block);
    }
    while engine.counters().pages.ahead_pages == 0 {
        assert!(began.elapsed() < PATIENCE, "no pages are backed ahead");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(has_thread());
}
