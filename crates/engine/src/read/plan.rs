//! Turns extents into the steps of a read.

use std::ops::Range;

use floe_image::{ByteRange, DeviceId, Extent, ExtentData, StoredBlock, StoredLen};

/// One step of a plan: a part of the output, and the origin of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlannedStep {
    /// The bytes of the output.
    pub(crate) output: Range<usize>,
    pub(crate) origin: Origin,
}

/// The origin of the bytes of a [`PlannedStep`], as the format maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A hole: the bytes are zero.
    Hole,
    /// Stored in the image without compression.
    Plain { device: DeviceId, offset: u64 },
    /// The part of a block from `skip` on.
    Block { block: StoredBlock, skip: usize },
}

/// Turns the extents of `range` into steps, in order, and returns how many bytes they fill. Plain bytes that are adjacent both
/// in the file and in the image become one step. Nothing is looked up or counted.
pub(crate) fn plan(range: ByteRange, extents: &[Extent], steps: &mut Vec<PlannedStep>) -> usize {
    let mut end = range.offset();
    for extent in extents {
        let wanted = extent.range.intersection(ByteRange::between(end, range.end()));
        if wanted.is_empty() {
            continue;
        }
        // A format that leaves a gap breaks its contract; the read then ends before it.
        if wanted.offset() != end {
            break;
        }
        end = wanted.end();
        let before = wanted.offset() - extent.range.offset();
        let output = offset_in(range, wanted.offset())..offset_in(range, wanted.end());
        let origin = match extent.data {
            ExtentData::Hole => Origin::Hole,
            ExtentData::Plain { device, offset } => Origin::Plain { device, offset: offset.saturating_add(before) },
            ExtentData::Encoded { block, skip } => Origin::Block { block, skip: skip as usize + before as usize },
        };
        match steps.last_mut() {
            Some(last) if last.is_continued_by(&origin) => last.output.end = output.end,
            _ => steps.push(PlannedStep { output, origin }),
        }
    }
    offset_in(range, end)
}

impl PlannedStep {
    /// The location of its stored bytes; `None` for a hole.
    pub(crate) fn stored(&self) -> Option<(DeviceId, ByteRange)> {
        match self.origin {
            Origin::Hole => None,
            Origin::Plain { device, offset } => Some((device, ByteRange::new(offset, self.output.len() as u64))),
            Origin::Block { block, .. } => Some((block.device, ByteRange::new(block.offset, stored_len(&block)))),
        }
    }

    /// Whether the bytes at `origin` follow those of this step in the image.
    fn is_continued_by(&self, origin: &Origin) -> bool {
        match (self.origin, *origin) {
            (Origin::Plain { device, offset }, Origin::Plain { device: next_device, offset: next_offset }) => {
                device == next_device && offset.checked_add(self.output.len() as u64) == Some(next_offset)
            }
            _ => false,
        }
    }
}

/// The number of stored bytes of a block of file data.
pub(crate) fn stored_len(block: &StoredBlock) -> u64 {
    match block.stored_len {
        StoredLen::Known(len) => u64::from(len),
        // File data always has its length in the map; a length of zero decodes to an error.
        StoredLen::Prefixed => 0,
    }
}

fn offset_in(range: ByteRange, position: u64) -> usize {
    (position - range.offset()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(start: u64, end: u64, offset: u64) -> Extent {
        Extent { range: ByteRange::between(start, end), data: ExtentData::Plain { device: DeviceId(0), offset } }
    }

    /// The bytes of the output, and the offset of plain bytes in the image.
    type Shown = (Range<usize>, Option<u64>);

    fn planned(extents: &[Extent]) -> (Vec<Shown>, usize) {
        let mut steps = Vec::new();
        let len = plan(ByteRange::new(100, 100), extents, &mut steps);
        let shown = |step: &PlannedStep| match step.origin {
            Origin::Plain { offset, .. } => (step.output.clone(), Some(offset)),
            _ => (step.output.clone(), None),
        };
        (steps.iter().map(shown).collect(), len)
    }

    #[test]
    fn adjacent_plain_bytes_are_one_step() {
        let hole = Extent { range: ByteRange::between(160, 180), data: ExtentData::Hole };
        for (extents, expected, len) in [
            (vec![plain(0, 200, 1000)], vec![(0..100, Some(1100))], 100),
            (vec![plain(90, 150, 0), plain(150, 300, 60)], vec![(0..100, Some(10))], 100),
            (vec![plain(100, 150, 0), plain(150, 200, 51)], vec![(0..50, Some(0)), (50..100, Some(51))], 100),
            (
                vec![plain(100, 160, 0), hole, plain(180, 200, 60)],
                vec![(0..60, Some(0)), (60..80, None), (80..100, Some(60))],
                100,
            ),
            (vec![plain(100, 120, 0), plain(130, 200, 30)], vec![(0..20, Some(0))], 20),
            (vec![], vec![], 0),
        ] {
            assert_eq!(planned(&extents), (expected, len), "{extents:?}");
        }
    }
}
