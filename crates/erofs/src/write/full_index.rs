//! The full index: eight bytes per lcluster (docs/format/erofs.md, Full index).

use super::{lclusters::Lcluster, low_u32};
use crate::format::{self, LclusterIndex};

/// The full index.
pub(super) fn full_index(lclusters: &[Lcluster]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(lclusters.len() * LclusterIndex::SIZE);
    for lcluster in lclusters {
        let index = match *lcluster {
            Lcluster::Head { kind, cluster_offset, block, partial } => LclusterIndex {
                di_advise: kind | if partial { format::LI_PARTIAL_REF } else { 0 },
                di_clusterofs: cluster_offset,
                di_u: low_u32(block),
            },
            Lcluster::NonHead { to_head, to_next } => LclusterIndex {
                di_advise: format::LCLUSTER_TYPE_NONHEAD,
                di_clusterofs: 0,
                di_u: u32::from(to_head) | u32::from(to_next) << 16,
            },
        };
        bytes.extend(index.to_bytes());
    }
    bytes
}
