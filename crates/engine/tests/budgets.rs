//! Memory stays within its bounds for any number of readers and any size of dictionaries.

#[expect(dead_code, reason = "not every test counts blocks")]
mod patchwork;

use std::{
    fs,
    sync::{Arc, mpsc},
    time::Duration,
};

use floe_engine::{EngineOptions, SyncDecompress, VolumeOptions};
use floe_image::Nid;
use floe_testkit::SlowSource;
use patchwork::{Options, Patchwork};

const BLOCK_BYTES: u64 = 1 << 20;

/// Memory outside the budgets: stacks of up to 64 threads, the allocator, replies in progress.
const SLACK_BYTES: u64 = 24 << 20;

/// The peak resident memory of this process.
fn resident_bytes_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

#[test]
fn many_readers_of_blocks_with_large_dictionaries_stay_in_their_budgets() {
    let patchwork = Arc::new(Patchwork::lzma(1, 64));
    let options = EngineOptions {
        cache_bytes: 4 << 20,
        reserved_pages: 64,
        decoder_bytes: 2 << 20,
        read_bytes: 16 << 20,
        ..EngineOptions::default()
    };
    let source = Arc::new(SlowSource::new(patchwork.source(), Duration::from_millis(2)));
    let volume = VolumeOptions { sync_decompress: SyncDecompress::Always, ..VolumeOptions::default() };
    let reader = Options { engine: options.clone(), volume }.reader(&patchwork, source);
    let resident_before = resident_bytes_max();
    let (sender, answers) = mpsc::channel();
    // Whole blocks, parts of blocks, and parts of their ends, of all blocks at once.
    let requests: Vec<_> = (0..64)
        .flat_map(|number| {
            [(0, 1 << 20), (4096, 4096), (BLOCK_BYTES - 9000, 5000)].map(|(at, len)| (number * BLOCK_BYTES + at, len))
        })
        .collect();
    for (offset, len) in requests.iter().copied() {
        let (sender, patchwork) = (sender.clone(), Arc::clone(&patchwork));
        reader.read_then(Nid(0), offset, len, move |result| {
            let is_right = result.map(|bytes| bytes == patchwork.expected(offset, len));
            sender.send((offset, is_right)).expect("somebody waits");
        });
    }
    drop(sender);
    let answers: Vec<_> = answers.iter().collect();
    assert_eq!(answers.len(), requests.len());
    for (offset, is_right) in answers {
        assert!(is_right.unwrap_or_else(|error| panic!("{offset}: {error}")), "{offset}");
    }
    let counters = reader.engine().counters();
    for (name, budget) in
        [("decoders", counters.decoders), ("reads", counters.admission), ("decoding", counters.decoding)]
    {
        assert!(budget.used_bytes_max <= budget.budget_bytes && budget.waits > 0, "{name}: {budget:?}");
    }
    assert!(counters.decoders.used_bytes <= options.decoder_bytes, "{:?}", counters.decoders);
    let taken = resident_bytes_max() - resident_before;
    let budgets = options.cache_bytes + options.decoder_bytes + options.read_bytes;
    assert!(taken <= budgets + SLACK_BYTES, "{} MiB of {} MiB", taken >> 20, budgets >> 20);
}
