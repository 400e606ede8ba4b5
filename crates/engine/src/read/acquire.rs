//! Looks up the current location of each part of a planned read.

use std::{ops::Range, sync::Arc, time::Duration};

use floe_image::{DeviceId, StoredBlock};

use crate::{
    Volume,
    cache::{
        block_cache::{BlockLookup, Lead},
        cached_block::CachedBlock,
        flight::Flight,
        spill_file::SpilledBlock,
    },
    read::plan::{Origin, PlannedStep},
};

/// Small reads do not cache tiny blocks of near sources: those of at most this many decoded bytes that decode in at
/// most this time. Fetching and decoding such a block again takes no longer than a page of the cache, its lock and
/// evictions.
const UNCACHED_BYTES_MAX: u32 = 16 << 10;
const UNCACHED_DECODE_MAX: Duration = Duration::from_micros(10);

/// The maximum length in bytes of such small reads. Longer reads cache their last block, because the next request
/// usually wants the rest of it.
const UNCACHED_READ_BYTES_MAX: usize = 8 << 10;

/// One step of a read: a part of its output, and the current location of its bytes.
#[derive(Debug)]
pub(crate) struct Step {
    /// The bytes of the output.
    pub(crate) output: Range<usize>,
    pub(crate) source: BlockSource,
}

/// The current location of the bytes of a [`Step`].
#[derive(Debug)]
pub(crate) enum BlockSource {
    /// A hole: the bytes are zero.
    Hole,
    /// Stored in the image without compression.
    Plain { device: DeviceId, offset: u64 },
    /// In a decoded block in memory.
    Cached { cached: Arc<CachedBlock>, block: StoredBlock, skip: usize },
    /// In a decoded block in the spill file.
    Spilled { spilled: SpilledBlock, block: StoredBlock, skip: usize },
    /// In a block that is decoded directly into the output: a whole block, or the part from `skip` on of a block that the
    /// cache has no room for.
    DecodeInto { block: StoredBlock, skip: usize },
    /// In a block that this read decodes into the cache.
    Lead { block: StoredBlock, skip: usize, lead: Lead },
    /// In a block that another read is decoding.
    Join { block: StoredBlock, skip: usize, flight: Arc<Flight<Arc<CachedBlock>>> },
    /// In a block to decode into the cache ahead of demand. The lead is taken only when decoding starts, so demand reads wait
    /// only from then on.
    Ahead { block: StoredBlock },
}

/// Looks up the bytes of each planned step of a demand read. Takes leads and counts hits.
pub(crate) fn acquire(volume: &Volume, planned: &[PlannedStep], steps: &mut Vec<Step>) {
    let is_small = planned.last().is_none_or(|step| step.output.end <= UNCACHED_READ_BYTES_MAX);
    let source = |step: &PlannedStep| match step.origin {
        Origin::Hole => BlockSource::Hole,
        Origin::Plain { device, offset } => BlockSource::Plain { device, offset },
        Origin::Block { block, skip } if is_small && is_decoded_again(volume, &block) => {
            match volume.blocks.peek(&block) {
                Some(cached) => BlockSource::Cached { cached, block, skip },
                None => BlockSource::DecodeInto { block, skip },
            }
        }
        Origin::Block { block, skip } => acquire_block(volume, block, skip, step.output.len()),
    };
    steps.extend(planned.iter().map(|step| Step { output: step.output.clone(), source: source(step) }));
}

/// Looks up `len` bytes of a block from `skip` on.
pub(crate) fn acquire_block(volume: &Volume, block: StoredBlock, skip: usize, len: usize) -> BlockSource {
    let blocks = &volume.blocks;
    let is_whole = skip == 0 && len == block.decoded_len.bytes() as usize;
    if is_whole {
        return match blocks.peek_whole(&block) {
            Some(cached) => BlockSource::Cached { cached, block, skip },
            None => BlockSource::DecodeInto { block, skip },
        };
    }
    if !blocks.has_room_for(&block) {
        return BlockSource::DecodeInto { block, skip };
    }
    // Before the lookup in the cache, which would make this read the leader of a decode.
    if let Some(spilled) = volume.engine.fragments.find(&blocks.key(&block), block.decoded_len) {
        return match blocks.peek(&block) {
            Some(cached) => BlockSource::Cached { cached, block, skip },
            None => BlockSource::Spilled { spilled, block, skip },
        };
    }
    match blocks.find_or_lead(&block) {
        BlockLookup::Ready(cached) => BlockSource::Cached { cached, block, skip },
        BlockLookup::InFlight(flight) => BlockSource::Join { block, skip, flight },
        BlockLookup::Lead(lead) => BlockSource::Lead { block, skip, lead },
    }
}

/// Whether each small read decodes the block again instead of caching it.
fn is_decoded_again(volume: &Volume, block: &StoredBlock) -> bool {
    block.decoded_len.bytes() <= UNCACHED_BYTES_MAX
        && volume.engine.costs.estimate(block) <= UNCACHED_DECODE_MAX
        && !volume.prefetch.is_far()
}
