//! Decisions of the controller, tested without threads, sources and sinks.

use super::*;

const KIB: u64 = 1 << 10;

fn controller() -> Controller {
    with_budget(16 << 20)
}

fn with_budget(budget_bytes: u64) -> Controller {
    let budget = Arc::<PrefetchBudget>::default();
    budget.set_max(budget_bytes);
    Controller::new(&VolumeOptions::default(), budget)
}

/// The windows for a sequential reader of `count` requests of 64 KiB.
fn windows(controller: &Controller, nid: u64, count: u64, pressure: Pressure) -> Vec<ByteRange> {
    let request = |index: u64| ByteRange::new(index * 64 * KIB, 64 * KIB);
    let window = |index| controller.note_read(Nid(nid), request(index), || pressure);
    (0..count).filter_map(|index| Some(window(index)?.range)).collect()
}

/// The maximum distance in bytes that is read ahead of such a reader.
fn reach(controller: &Controller, nid: u64, count: u64, pressure: Pressure) -> u64 {
    let request = |index: u64| ByteRange::new(index * 64 * KIB, 64 * KIB);
    let end = |index| Some(controller.note_read(Nid(nid), request(index), || pressure)?.range.end());
    (0..count).filter_map(|index| Some(end(index)? - request(index).end())).max().unwrap_or(0)
}

fn largest(windows: &[ByteRange]) -> u64 {
    windows.iter().map(|window| window.len()).max().unwrap_or(0)
}

#[test]
fn readahead_of_a_sequential_reader_has_no_gaps() {
    let windows = windows(&controller(), 7, 200, Pressure::None);
    assert_eq!(windows[0].offset(), 128 * KIB, "at the second read");
    assert!(windows.windows(2).all(|pair| pair[0].end() == pair[1].offset()), "{windows:?}");
    assert_eq!(reach(&controller(), 7, 200, Pressure::None), WINDOW_MAX);
    let jumps = |index: u64| ByteRange::new((index * 7919 % 101) * (3 << 20), 4096);
    let controller = controller();
    assert!((0..100).all(|index| controller.note_read(Nid(7), jumps(index), || Pressure::None).is_none()));
}

#[test]
fn windows_shrink_while_memory_is_short_and_vanish_while_cpus_are() {
    let controller = controller();
    for (nid, pressure, expected) in
        [(7, Pressure::Cpus, 0), (8, Pressure::Memory, FILE_WINDOW_MIN), (9, Pressure::None, WINDOW_MAX)]
    {
        assert_eq!(reach(&controller, nid, 100, pressure), expected, "{pressure:?}");
    }
}

#[test]
fn windows_shrink_with_wasted_bytes_and_grow_with_used_ones() {
    let controller = controller();
    let claim = || controller.claim_ahead(256 * KIB).expect("room");
    (0..40).for_each(|_| drop(claim()));
    assert_eq!(reach(&controller, 1, 100, Pressure::None), FILE_WINDOW_MIN, "but never to nothing");
    (0..40).for_each(|_| claim().note_used());
    assert!(reach(&controller, 2, 100, Pressure::None) > WINDOW_MAX * 9 / 10);
}

#[test]
fn the_budget_bounds_unused_prefetched_bytes() {
    let controller = with_budget(1 << 20);
    assert!(reach(&controller, 1, 100, Pressure::None) <= (1 << 20) / 2);
    // Unused bytes make room, so that one abandoned file does not stop prefetch of all others.
    let claims: Vec<_> = (0..100).map(|_| controller.claim_ahead(64 * KIB).expect("room")).collect();
    assert_eq!(controller.counters().wasted_blocks, 100 - 16);
    let held: Vec<_> = (0..20).map_while(|_| controller.hold(64 * KIB)).collect();
    assert_eq!((held.len(), controller.counters().dropped), (16, 1));
    assert!(controller.claim_ahead(1).is_none(), "blocks on their way to the page cache stay");
    drop(claims);
    let none = with_budget(0);
    assert!(windows(&none, 1, 100, Pressure::None).is_empty());
}

/// Makes reads of 4 KiB miss at this distance, and returns the windows that are requested.
fn missed(controller: &Controller, step: u64, waited: Duration) -> Vec<ByteRange> {
    let miss = |index: u64| {
        let miss = controller.note_miss(Purpose::Data, DeviceId(0), ByteRange::new(index * step, 4096), false);
        controller.note_waited(miss, 4096, waited);
        miss.window
    };
    (0..400).filter_map(miss).collect()
}

#[test]
fn misses_request_windows_where_reads_are_dense() {
    let controller = controller();
    let near = Duration::from_micros(150);
    let dense = missed(&controller, 4096, near);
    assert!(dense.windows(2).all(|pair| pair[0].end() == pair[1].offset()), "each is requested once: {dense:?}");
    assert_eq!((dense.len(), largest(&dense)), (13, 128 * KIB));
    let scattered = missed(&controller, 3 << 20, near);
    assert!(scattered.len() < 60, "{}", scattered.len());
    assert!(missed(&controller, 1 << 33, near).is_empty() && !controller.data_is_dense());
    // Hits count towards density too.
    let hit =
        |index: u64| controller.note_hit(Purpose::Data, DeviceId(0), ByteRange::new((1 << 40) + index * 512, 512));
    (0..200).for_each(hit);
    assert!(controller.data_is_dense());
    controller.set(&VolumeOptions { fetch_around_bytes: 0, ..VolumeOptions::default() });
    assert!(
        missed(&controller, 4096, near).is_empty() && controller.data_is_dense(),
        "density is measured nevertheless"
    );
}

#[test]
fn a_far_source_gets_windows_of_mebibytes() {
    let controller = controller();
    assert!(!controller.is_far());
    let around = missed(&controller, 64 << 10, Duration::from_millis(80));
    assert!(controller.is_far() && largest(&around) == 4 << 20, "{}", largest(&around));
    assert!(reach(&controller, 1, 1000, Pressure::None) > 3 << 20);
    assert!(reach(&controller, 3, 1000, Pressure::Cpus) > 3 << 20, "its bytes take long, whatever the CPUs do");
    let large = |nid, len| controller.note_read(Nid(nid), ByteRange::new(0, len), || Pressure::None);
    assert!(
        large(11, 128 * KIB).is_some_and(|ahead| ahead.range.offset() == 128 * KIB) && large(12, 64 * KIB).is_none()
    );
    let asked = |purpose, reads_around| {
        (0..10).any(|index| {
            let wanted = ByteRange::new((1 << 35) + index * (8 << 20), 4096);
            controller.note_miss(purpose, DeviceId(0), wanted, reads_around).window.is_some()
        })
    };
    assert!(!asked(Purpose::Data, true), "a source that reads around by itself is not asked for windows");
    assert!(asked(Purpose::Data, false) && asked(Purpose::Metadata, true));
    // Over a disk, windows soon have the sizes for a disk again.
    missed(&controller, 512 << 10, Duration::from_micros(150));
    assert!(!controller.is_far());
    assert_eq!(reach(&controller, 2, 1000, Pressure::None), WINDOW_MAX);
}

#[test]
fn batches_of_a_walk_follow_the_used_ones() {
    struct None;
    impl Sink for None {
        fn push(&self, _: Nid, _: u64, _: &[u8]) -> usize {
            0
        }
        fn page_bytes(&self) -> u64 {
            4096
        }
    }
    let controller = controller();
    controller.set_sink(Box::new(None));
    let files: Vec<_> = (0..10_000).map(|nid| ListedFile { nid: Nid(nid), size: 10_000 }).collect();
    controller.note_listed(Nid(1 << 40), true, &files);
    let mut cached = std::collections::HashSet::new();
    let mut batches = Vec::new();
    for nid in 0..10_000 {
        if cached.insert(nid) {
            let files = controller.next_files(Nid(nid), || Pressure::None);
            batches.extend((!files.is_empty()).then_some(files.len()));
            assert!(files.iter().all(|ahead| cached.insert(ahead.file.nid.0)), "nothing twice");
        }
    }
    assert!(batches[0] < 30 && batches.iter().any(|count| *count > FILES_MAX / 3), "{batches:?}");
    let (used, wasted) = controller.directory_feedback.used_and_wasted();
    assert!(used > 50 && wasted < 3, "{used} {wasted}");
}

#[test]
fn a_rejected_cluster_is_returned_again() {
    let controller = controller();
    let read = |page: u64| controller.cluster(Nid(7), ByteRange::new(CLUSTER_BYTES + page * 4 * KIB, 4 * KIB));
    let cluster = ByteRange::new(CLUSTER_BYTES, CLUSTER_BYTES);
    for number in 1..CLUSTER_READS {
        assert_eq!(read(number), None);
    }
    assert_eq!([read(9), read(20)], [Some(cluster); 2]);
    controller.note_cluster(Nid(7), cluster);
    assert_eq!([read(31), read(17), read(0)], [None, None, None]);
}
