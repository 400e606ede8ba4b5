//! What one read has to do, in steps.

use std::{ops::Range, sync::Arc};

use floe_image::{ByteRange, DeviceId, Extent, ExtentData, StoredBlock};

use crate::{
    block_cache::{BlockCache, CachedBlock, Found, Lead},
    flight::Flight,
    overflow::{Overflow, Overflowed},
};

/// One step of a read: where some bytes of its output come from.
#[derive(Debug)]
pub(crate) struct Step {
    /// The bytes of the output.
    pub(crate) output: Range<usize>,
    pub(crate) from: From,
}

/// Where the bytes of a [`Step`] come from.
#[derive(Debug)]
pub(crate) enum From {
    /// They are zero.
    Nowhere,
    /// They stand in the image as they are.
    Plain { device: DeviceId, offset: u64 },
    /// They are in a block that is decoded already.
    Cached { cached: Arc<CachedBlock>, block: StoredBlock, skip: usize },
    /// They are in a block that is decoded already, but not in memory of ours.
    Overflowed { overflowed: Overflowed, block: StoredBlock, skip: usize },
    /// They are a whole block, or the part from `skip` on of one that the cache has no room for, decoded straight into
    /// the output.
    Straight { block: StoredBlock, skip: usize },
    /// They are a part of a block that this read decodes for all.
    Lead { block: StoredBlock, skip: usize, lead: Lead },
    /// They are a part of a block that another read is decoding.
    Join { block: StoredBlock, skip: usize, flight: Arc<Flight<Arc<CachedBlock>>> },
    /// They were put into the output.
    Done,
}

/// Turns the extents that a format gave for `range` into steps, in order.
pub(crate) fn plan(
    range: ByteRange,
    extents: &[Extent],
    blocks: &Arc<BlockCache>,
    overflow: &Overflow,
    steps: &mut Vec<Step>,
) -> usize {
    let mut end = range.offset();
    for extent in extents {
        let wanted = extent.range.intersection(ByteRange::between(end, range.end()));
        // A format that leaves a gap breaks its contract; the read then ends before it.
        if wanted.is_empty() || wanted.offset() != end {
            if wanted.offset() > end && !wanted.is_empty() {
                break;
            }
            continue;
        }
        end = wanted.end();
        let before = wanted.offset() - extent.range.offset();
        let output = offset_in(range, wanted.offset())..offset_in(range, wanted.end());
        let from = match extent.data {
            ExtentData::Hole => From::Nowhere,
            ExtentData::Plain { device, offset } => From::Plain { device, offset: offset.saturating_add(before) },
            ExtentData::Encoded { block, skip } => {
                of_block(block, skip as usize + before as usize, output.len(), blocks, overflow)
            }
        };
        steps.push(Step { output, from });
    }
    offset_in(range, end)
}

/// How a part of a block is come by.
pub(crate) fn of_block(
    block: StoredBlock,
    skip: usize,
    len: usize,
    blocks: &Arc<BlockCache>,
    overflow: &Overflow,
) -> From {
    let is_whole = skip == 0 && len == block.decoded_len.bytes() as usize;
    if is_whole {
        return match blocks.peek_whole(&block) {
            Some(cached) => From::Cached { cached, block, skip },
            None => From::Straight { block, skip },
        };
    }
    if !blocks.has_room_for(&block) {
        return From::Straight { block, skip };
    }
    if let Some(overflowed) = overflow.find(&block) {
        return match blocks.peek(&block) {
            Some(cached) => From::Cached { cached, block, skip },
            None => From::Overflowed { overflowed, block, skip },
        };
    }
    match blocks.find_or_lead(&block) {
        Found::Ready(cached) => From::Cached { cached, block, skip },
        Found::InFlight(flight) => From::Join { block, skip, flight },
        Found::Lead(lead) => From::Lead { block, skip, lead },
    }
}

fn offset_in(range: ByteRange, position: u64) -> usize {
    (position - range.offset()) as usize
}
