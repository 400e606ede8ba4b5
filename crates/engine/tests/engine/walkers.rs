//! Many walkers over the same metadata: counts that show the difference between the two designs on any number of CPUs.

#[path = "../../examples/walkers/simulation.rs"]
#[allow(dead_code, reason = "times are the example's")]
mod simulation;

use std::time::Duration;

use floe_engine::{EngineOptions, MetadataCacheDesign};
use simulation::{Outcome, Simulation, Start};

const WALKER_COUNTS: [u32; 5] = [1, 2, 8, 16, 64];
const BLOCK_COUNT: u32 = 64;

fn simulate(design: MetadataCacheDesign, start: Start, walker_count: u32) -> Outcome {
    let decode = Duration::from_micros(500);
    let outcome = Simulation { design, start, walker_count, block_count: BLOCK_COUNT, decode }.run();
    let cache = outcome.cache;
    let case = format!("{design}, {walker_count} {start:?}: {outcome:?}");
    assert_eq!(cache.releases, u64::from(walker_count * BLOCK_COUNT), "one for each look-up: {case}");
    assert_eq!(cache.misses, outcome.decodes, "{case}");
    assert!(cache.wakes <= cache.waits, "only sleepers are woken: {case}");
    assert!(cache.evictions <= cache.misses, "{case}");
    assert!(cache.wakes <= cache.wakes_max * cache.releases && cache.wakes_max < u64::from(walker_count), "{case}");
    outcome
}

#[test]
fn each_block_is_decoded_once_and_no_release_wakes_two() {
    for start in [Start::Together, Start::Apart] {
        for walker_count in WALKER_COUNTS {
            let outcome = simulate(EngineOptions::default().metadata_cache, start, walker_count);
            assert_eq!(outcome.decodes, u64::from(BLOCK_COUNT), "{walker_count} {start:?}");
            assert!(outcome.wakes_per_release() <= 1.0 && outcome.cache.wakes_max <= 1, "{walker_count}: {outcome:?}");
        }
    }
}

#[test]
fn few_entries_behind_one_lock_wake_herds_that_grow() {
    let design = MetadataCacheDesign::SingleLock { entry_count: 8 };
    let apart = WALKER_COUNTS.map(|walker_count| simulate(design, Start::Apart, walker_count));
    let [one, _, eight, sixteen, sixty_four] = apart;
    assert_eq!((one.decodes, one.cache.wakes), (u64::from(BLOCK_COUNT), 0), "{one:?}");
    assert!(eight.wakes_per_release() <= 1.0, "there is an entry for each: {eight:?}");
    assert!(sixty_four.decodes > 4 * u64::from(BLOCK_COUNT), "blocks are decoded again and again: {sixty_four:?}");
    // How often sleepers sleep again before the next release depends on the scheduler; the number of sleepers does not.
    assert!(sixty_four.wakes_per_release() > eight.wakes_per_release(), "{eight:?} {sixty_four:?}");
    assert!(sixty_four.cache.wakes_max > sixteen.cache.wakes_max, "{sixteen:?} {sixty_four:?}");
    // If all walkers want the same block, its maker wakes all others at once.
    let together = simulate(design, Start::Together, 64);
    assert!(together.cache.wakes_max > 16, "{together:?}");
}
