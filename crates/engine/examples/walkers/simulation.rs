//! Walkers that read the same metadata side by side, where decoding a block is sleeping.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Blocking, Engine, EngineOptions, MetadataCacheCounters, MetadataCacheDesign};
use floe_image::{DecodedLen, DeviceId, Encoding, ImageSource, StoredBlock, StoredLen};
use floe_testkit::{CountingSource, MemorySource, SlowSource};

/// What a metadata block of SquashFS decodes to, in bytes.
const BLOCK_BYTES: u32 = 8 << 10;

/// Where the walkers begin. Each goes through all blocks, in the order of the image, and after the last comes the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// All at the first block.
    Together,
    /// Each at another block, as far from each other as there is room.
    Apart,
}

/// Walkers that read the same metadata side by side. No CPU is wanted for decoding, so that any number of CPUs shows how
/// a cache scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulation {
    pub(crate) design: MetadataCacheDesign,
    pub(crate) start: Start,
    pub(crate) walker_count: u32,
    pub(crate) block_count: u32,
    /// How long each decode sleeps.
    pub(crate) decode: Duration,
}

/// How it went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// From the start of all to the end of the last.
    pub(crate) wall: Duration,
    /// Decodes, as the source of the stored bytes counts them.
    pub(crate) decodes: u64,
    pub(crate) cache: MetadataCacheCounters,
}

impl Simulation {
    /// Lets all walkers go through all blocks.
    ///
    /// # Panics
    /// A walker was given another block than it asked for.
    pub(crate) fn run(&self) -> Outcome {
        let image: Vec<u8> = (0..self.block_count).flat_map(|index| [content(index); BLOCK_BYTES as usize]).collect();
        let slow = SlowSource::new(Arc::new(MemorySource::new(image)), self.decode);
        let source = Arc::new(CountingSource::new(Arc::new(slow)));
        let options = EngineOptions { metadata_cache: self.design, reserved_pages: 0, ..EngineOptions::default() };
        let engine = Engine::new(vec![Arc::clone(&source) as Arc<dyn ImageSource>], &options).expect("an engine");
        let barrier = Barrier::new(self.walker_count as usize + 1);
        let started = thread::scope(|scope| {
            for walker in 0..self.walker_count {
                let (engine, barrier) = (&engine, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    self.walk(engine, walker);
                });
            }
            barrier.wait();
            Instant::now()
        });
        let cache = engine.counters().decoded_metadata;
        Outcome { wall: started.elapsed(), decodes: source.read_count(), cache }
    }

    fn walk(&self, engine: &Arc<Engine>, walker: u32) {
        let reader = engine.block_reader(Blocking::Allowed);
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
    /// Threads woken by one release on average.
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

/// What a block is full of.
fn content(index: u32) -> u8 {
    (index % 251) as u8
}
