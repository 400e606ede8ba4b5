//! Walkers that read the same metadata concurrently, with a sleep in place of each decode.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Blocking, EngineOptions, MetadataCacheCounters, MetadataCacheDesign, Volume, VolumeOptions};
use floe_image::{DecodedLen, DeviceId, Encoding, ImageSource, StoredBlock, StoredLen};
use floe_testkit::{CountingSource, MemorySource, SlowSource};

/// The decoded size of a SquashFS metadata block, in bytes.
const BLOCK_BYTES: u32 = 8 << 10;

/// Where the walkers begin. Each reads all blocks in the order of the image, and wraps around at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// All at the first block.
    Together,
    /// Spread evenly over the blocks.
    Apart,
}

/// Walkers that read the same metadata concurrently. Decodes need no CPU, so the simulation shows how a cache scales on
/// any number of CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulation {
    pub(crate) design: MetadataCacheDesign,
    pub(crate) start: Start,
    pub(crate) walker_count: u32,
    pub(crate) block_count: u32,
    /// The duration of a decode, which sleeps.
    pub(crate) decode: Duration,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// From the common start to the end of the last walker.
    pub(crate) wall: Duration,
    /// Decodes, counted at the source of the stored bytes.
    pub(crate) decodes: u64,
    pub(crate) cache: MetadataCacheCounters,
}

impl Simulation {
    /// Runs all walkers to their end.
    ///
    /// # Panics
    /// A walker received another block than it requested.
    pub(crate) fn run(&self) -> Outcome {
        let image: Vec<u8> = (0..self.block_count).flat_map(|index| [content(index); BLOCK_BYTES as usize]).collect();
        let slow = SlowSource::new(Arc::new(MemorySource::new(image)), self.decode);
        let source = Arc::new(CountingSource::new(Arc::new(slow)));
        let options = EngineOptions { metadata_cache: self.design, reserved_pages: 0, ..EngineOptions::default() };
        let sources = vec![Arc::clone(&source) as Arc<dyn ImageSource>];
        let volume = Volume::alone(sources, &options, &VolumeOptions::default()).expect("an engine");
        let barrier = Barrier::new(self.walker_count as usize + 1);
        let started = thread::scope(|scope| {
            for walker in 0..self.walker_count {
                let (volume, barrier) = (&volume, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    self.walk(volume, walker);
                });
            }
            barrier.wait();
            Instant::now()
        });
        let cache = volume.counters().decoded_metadata;
        Outcome { wall: started.elapsed(), decodes: source.read_count(), cache }
    }

    fn walk(&self, volume: &Arc<Volume>, walker: u32) {
        let reader = volume.block_reader(Blocking::Allowed);
        let first = match self.start {
            Start::Together => 0,
            Start::Apart => walker * self.block_count / self.walker_count,
        };
        for step in 0..self.block_count {
            let index = (first + step) % self.block_count;
            let decoded = reader.decoded(&block(index)).expect("decoded");
            assert_eq!(decoded.bytes.first(), Some(&content(index)), "block {index}");
        }
    }
}

impl Outcome {
    /// The average number of threads that a release woke.
    pub(crate) fn wakes_per_release(&self) -> f64 {
        self.cache.wakes as f64 / self.cache.releases as f64
    }
}

fn block(index: u32) -> StoredBlock {
    StoredBlock {
        device: DeviceId(0),
        offset: u64::from(index) * u64::from(BLOCK_BYTES),
        stored_len: StoredLen::Known(BLOCK_BYTES),
        decoded_len: DecodedLen::Exact(BLOCK_BYTES),
        encoding: Encoding::Stored,
    }
}

/// The byte that fills a block.
fn content(index: u32) -> u8 {
    (index % 251) as u8
}
