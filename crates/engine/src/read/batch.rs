//! Blocks whose stored bytes are fetched together.

use std::time::Duration;

use floe_image::{DeviceId, Result, StoredBlock};

use crate::{
    PageRun, Volume,
    memory::byte_budget::Reservation,
    read::{
        acquire::{BlockSource, Step},
        plan::stored_len,
    },
};

/// The maximum number of stored bytes that one fetch reads for several blocks.
const FETCH_BYTES_MAX: u64 = 512 << 10;

/// Blocks to decode whose stored bytes are adjacent, so that one fetch reads them all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    /// The number of leading steps in the batch, one block each.
    pub(crate) block_count: usize,
    pub(crate) device: DeviceId,
    /// The offset of the first stored byte.
    pub(crate) start: u64,
    /// The number of stored bytes.
    pub(crate) len: usize,
    /// The estimated time to decode all of them.
    pub(crate) decode_cost: Duration,
    /// The decoded bytes of those blocks that are decoded into the cache rather than into the output.
    pub(crate) led_bytes: u64,
}

/// The stored bytes of a batch.
pub(crate) struct Stored {
    pages: PageRun,
    len: usize,
    /// The memory of the pages, and of the blocks that are decoded from them into the cache.
    _reservation: Reservation,
}

impl Stored {
    pub(crate) fn new(pages: PageRun, len: usize, reservation: Reservation) -> Self {
        Self { pages, len, _reservation: reservation }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pages[..self.len]
    }
}

impl Batch {
    /// The batch at the start of `steps`; `None` if the first step decodes nothing.
    ///
    /// # Errors
    /// A block ends past the end of its source, or is longer than any format allows.
    pub(crate) fn at(volume: &Volume, steps: &[Step]) -> Result<Option<Self>> {
        let mut batch: Option<Self> = None;
        for (step, block) in steps.iter().map_while(|step| Some((step, step.block_to_decode()?))) {
            volume.check_bounds(block)?;
            let (decode_cost, len) = (volume.engine.costs.estimate(block), stored_len(block));
            let is_led = !matches!(step.source, BlockSource::DecodeInto { .. });
            let led_bytes = if is_led { u64::from(block.decoded_len.bytes()) } else { 0 };
            match &mut batch {
                None => {
                    batch = Some(Self {
                        block_count: 1,
                        device: block.device,
                        start: block.offset,
                        len: len as usize,
                        decode_cost,
                        led_bytes,
                    });
                }
                Some(batch)
                    if batch.device == block.device
                        && batch.start.checked_add(batch.len as u64) == Some(block.offset)
                        && batch.len as u64 + len <= FETCH_BYTES_MAX =>
                {
                    batch.block_count += 1;
                    batch.len += len as usize;
                    batch.decode_cost += decode_cost;
                    batch.led_bytes += led_bytes;
                }
                Some(_) => break,
            }
        }
        Ok(batch)
    }

    /// The stored bytes of `block` within those of the batch.
    pub(crate) fn stored_of<'bytes>(&self, block: &StoredBlock, stored: &'bytes [u8]) -> &'bytes [u8] {
        let from = (block.offset - self.start) as usize;
        &stored[from..from + stored_len(block) as usize]
    }
}

impl Step {
    /// The block that the step decodes.
    pub(crate) fn block_to_decode(&self) -> Option<&StoredBlock> {
        match &self.source {
            BlockSource::DecodeInto { block, .. } | BlockSource::Lead { block, .. } | BlockSource::Ahead { block } => {
                Some(block)
            }
            _ => None,
        }
    }
}
