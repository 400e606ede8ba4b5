//! Blocks that one fetch brings.

use std::{ops::Range, time::Duration};

use floe_image::{DeviceId, Result, StoredBlock, StoredLen};

use crate::{
    Engine, PageRun,
    byte_budget::Permit,
    read_plan::{From, Step},
};

/// The most stored bytes that one fetch brings for several blocks.
const FETCH_BYTES_MAX: u64 = 512 << 10;

/// Steps that follow one another and whose stored bytes stand behind one another, so that one fetch brings them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    pub(crate) steps: Range<usize>,
    pub(crate) device: DeviceId,
    /// The first stored byte.
    pub(crate) start: u64,
    /// How many stored bytes.
    pub(crate) len: usize,
    /// How long decoding will take; zero for plain bytes.
    pub(crate) decode_cost: Duration,
    /// How many blocks are to be decoded.
    pub(crate) block_count: usize,
    /// How many bytes those give that are decoded for all who want them, and so not into the output.
    pub(crate) led_bytes: u64,
}

impl Batch {
    /// The batch that begins at step `index`; `None` where that step fetches nothing.
    ///
    /// # Errors
    /// A block lies past the end of its source, or is longer than any format has them.
    pub(crate) fn at(engine: &Engine, steps: &[Step], index: usize) -> Result<Option<Self>> {
        let mut batch: Option<Self> = None;
        let mut output_end = 0;
        for (number, step) in steps.iter().enumerate().skip(index) {
            let Some((device, start, len)) = stored_range(step) else { break };
            // Steps between these two may be done already; plain bytes go to the output in one piece.
            let is_gap = step.output.start != std::mem::replace(&mut output_end, step.output.end);
            let block = block_to_decode(step);
            let decode_cost = match block {
                Some(block) => {
                    engine.check_bounds(block)?;
                    engine.costs.estimate(block)
                }
                None => Duration::ZERO,
            };
            let is_plain = block.is_none();
            let led_bytes = match &step.from {
                From::Lead { block, .. } => u64::from(block.decoded_len.bytes()),
                _ => 0,
            };
            match &mut batch {
                None => {
                    let block_count = usize::from(!is_plain);
                    batch = Some(Self {
                        steps: number..number + 1,
                        device,
                        start,
                        len: len as usize,
                        decode_cost,
                        block_count,
                        led_bytes,
                    });
                }
                Some(batch)
                    if batch.device == device
                        && batch.is_plain() == is_plain
                        && batch.start.checked_add(batch.len as u64) == Some(start)
                        && if is_plain { !is_gap } else { batch.len as u64 + len <= FETCH_BYTES_MAX } =>
                {
                    batch.steps.end = number + 1;
                    batch.len += len as usize;
                    batch.decode_cost += decode_cost;
                    batch.block_count += usize::from(!is_plain);
                    batch.led_bytes += led_bytes;
                }
                Some(_) => break,
            }
        }
        Ok(batch)
    }

    /// Whether the bytes are wanted as they stand.
    pub(crate) fn is_plain(&self) -> bool {
        self.block_count == 0
    }

    /// The stored bytes of `block` within those of the batch.
    pub(crate) fn stored_of<'bytes>(&self, block: &StoredBlock, stored: &'bytes [u8]) -> &'bytes [u8] {
        let from = (block.offset - self.start) as usize;
        &stored[from..from + stored_len(block) as usize]
    }
}

/// The stored bytes of a batch.
pub(crate) struct Stored {
    pages: PageRun,
    len: usize,
    /// The memory of the pages, and of blocks that are decoded from them for all who want them.
    _permit: Permit,
}

impl Stored {
    pub(crate) fn new(pages: PageRun, len: usize, permit: Permit) -> Self {
        Self { pages, len, _permit: permit }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pages[..self.len]
    }
}

/// The block that a step has to decode.
pub(crate) fn block_to_decode(step: &Step) -> Option<&StoredBlock> {
    match &step.from {
        From::Straight { block, .. } | From::Lead { block, .. } => Some(block),
        _ => None,
    }
}

fn stored_range(step: &Step) -> Option<(DeviceId, u64, u64)> {
    match &step.from {
        From::Plain { device, offset } => Some((*device, *offset, step.output.len() as u64)),
        From::Straight { block, .. } | From::Lead { block, .. } => {
            Some((block.device, block.offset, stored_len(block)))
        }
        From::Nowhere | From::Cached { .. } | From::Overflowed { .. } | From::Join { .. } | From::Done => None,
    }
}

fn stored_len(block: &StoredBlock) -> u64 {
    match block.stored_len {
        StoredLen::Known(len) => u64::from(len),
        // File data always has its length in the map; a length of zero decodes to an error.
        StoredLen::Prefixed => 0,
    }
}
