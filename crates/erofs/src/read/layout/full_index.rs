//! Full lcluster indexes (docs/format/erofs.md, Full index).

use floe_image::Result;

use super::{Head, HeadKind, Lcluster, Loaded};
use crate::{
    format::{self, LclusterIndex},
    read::window::Window,
};

/// The size of a record.
const RECORD_LEN: u64 = 8;

/// Decodes the record of lcluster `number` in the full index at `start`.
///
/// # Errors
/// The record cannot be read.
pub(super) fn load(window: &mut Window<'_>, start: u64, number: u64) -> Result<Loaded> {
    let position = start.saturating_add(number.saturating_mul(RECORD_LEN));
    let record: [u8; LclusterIndex::SIZE] = window.array(position)?;
    let raw = LclusterIndex::from_prefix(&record).unwrap_or_default();
    Ok(Loaded { lcluster: decode(&raw), record_end: position + RECORD_LEN })
}

fn decode(raw: &LclusterIndex) -> Lcluster {
    let kind = match raw.di_advise & format::LI_LCLUSTER_TYPE_MASK {
        format::LCLUSTER_TYPE_PLAIN => HeadKind::Plain,
        format::LCLUSTER_TYPE_HEAD1 => HeadKind::First,
        format::LCLUSTER_TYPE_HEAD2 => HeadKind::Second,
        _ => return decode_non_head(raw.di_u),
    };
    Lcluster::Head(Head {
        kind,
        offset: u64::from(raw.di_clusterofs),
        block: u64::from(raw.di_u),
        is_hole: raw.di_advise & format::LI_HOLE != 0,
        is_partial: raw.di_advise & format::LI_PARTIAL_REF != 0,
    })
}

fn decode_non_head(deltas: u32) -> Lcluster {
    let (to_head, to_next_head) = (deltas & 0xffff, u64::from(deltas >> 16));
    let counts_blocks = u32::from(format::LI_D0_CBLKCNT);
    match to_head & counts_blocks {
        0 => Lcluster::NonHead { to_head: u64::from(to_head), to_next_head, block_count: None },
        _ => {
            let block_count = Some(u64::from(to_head & !counts_blocks));
            Lcluster::NonHead { to_head: 1, to_next_head, block_count }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_decode_by_their_type() {
        let head = |kind, is_hole, is_partial| Lcluster::Head(Head { kind, offset: 7, block: 99, is_hole, is_partial });
        let non_head = |to_head, to_next_head, block_count| Lcluster::NonHead { to_head, to_next_head, block_count };
        for (advise, u, expected) in [
            (0, 99, head(HeadKind::Plain, false, false)),
            (1, 99, head(HeadKind::First, false, false)),
            (3, 99, head(HeadKind::Second, false, false)),
            (0x8001, 99, head(HeadKind::First, false, true)),
            (0x4001, 99, head(HeadKind::First, true, false)),
            (2, 0x0003_0002, non_head(2, 3, None)),
            (2, 0x0003_0804, non_head(1, 3, Some(4))),
            (2, 0x0003_0800, non_head(1, 3, Some(0))),
        ] {
            let raw = LclusterIndex { di_advise: advise, di_clusterofs: 7, di_u: u };
            assert_eq!(decode(&raw), expected, "{advise:#x} {u:#x}");
        }
    }
}
