//! Simulates many walkers over the two designs of the metadata cache. Decodes sleep, so that few CPUs suffice.
//!
//! `cargo run -p floe-engine --example walkers [WALKERS…]`

mod simulation;

use std::{env, num::ParseIntError, time::Duration};

use floe_engine::MetadataCacheDesign;
use simulation::{Simulation, Start};

/// The number of blocks that each walker reads.
const BLOCK_COUNT: u32 = 256;

/// The duration of a decode, which sleeps.
const DECODE: Duration = Duration::from_millis(1);

/// The default numbers of walkers.
const WALKER_COUNTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The default of mounts, and the design of the kernel's SquashFS.
const DESIGNS: [MetadataCacheDesign; 2] =
    [MetadataCacheDesign::Sharded { block_count: 1024 }, MetadataCacheDesign::SingleLock { entry_count: 8 }];

fn main() -> Result<(), ParseIntError> {
    let asked = env::args().skip(1).map(|count| count.parse()).collect::<Result<Vec<u32>, _>>()?;
    let walker_counts = if asked.is_empty() { WALKER_COUNTS.to_vec() } else { asked };
    println!("{BLOCK_COUNT} blocks for each walker; a decode sleeps for {DECODE:?}");
    for start in [Start::Together, Start::Apart] {
        println!("\nthe walkers begin {start:?}");
        println!("| walkers | metadata-cache= | ms | decodes | wake-ups for each release | most at once |");
        println!("|---|---|---|---|---|---|");
        for &walker_count in &walker_counts {
            for design in DESIGNS {
                let simulation = Simulation { design, start, walker_count, block_count: BLOCK_COUNT, decode: DECODE };
                let outcome = simulation.run();
                println!(
                    "| {walker_count} | {design} | {} | {} | {:.2} | {} |",
                    outcome.wall.as_millis(),
                    outcome.decodes,
                    outcome.wakes_per_release(),
                    outcome.cache.wakes_max
                );
            }
        }
    }
    Ok(())
}
