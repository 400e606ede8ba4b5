//! The lclusters of a file, the input of both kinds of index (docs/format/erofs.md, Lclusters).

use super::{CompressedExtent, ExtentKind};
use crate::format;

/// One lcluster of a compressed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lcluster {
    /// An extent begins.
    Head {
        /// An `LCLUSTER_TYPE_` number.
        kind: u16,
        /// The offset in the lcluster at which it begins, in bytes.
        cluster_offset: u16,
        /// The first block of the pcluster.
        block: u64,
        /// Whether the pcluster decodes to more than the extent.
        partial: bool,
    },
    /// No extent begins.
    NonHead {
        /// The distance back to the head in lclusters; or with [`format::LI_D0_CBLKCNT`], the block count of the
        /// pcluster.
        to_head: u16,
        /// The distance ahead to the next head.
        to_next: u16,
    },
}

/// The lclusters of a file. Every extent except the last reaches the end of the lcluster in which it begins.
pub(super) fn lclusters(extents: &[CompressedExtent], block_size_log2: u8, big: bool) -> Vec<Lcluster> {
    let block_size = 1u64 << block_size_log2;
    let mut lclusters = Vec::new();
    let mut offset = 0u64;
    for extent in extents {
        let end = offset + u64::from(extent.len);
        let first = offset >> block_size_log2;
        let kind = match extent.kind {
            ExtentKind::Plain => format::LCLUSTER_TYPE_PLAIN,
            ExtentKind::Encoded { .. } | ExtentKind::Fragment => format::LCLUSTER_TYPE_HEAD1,
        };
        lclusters.push(Lcluster::Head {
            kind,
            cluster_offset: within(offset, block_size),
            block: extent.block,
            partial: extent.kind == ExtentKind::Encoded { partial: true },
        });
        let next_head = end >> block_size_log2;
        for number in first + 1..next_head {
            let distance = u16::try_from(number - first).unwrap_or(u16::MAX);
            let to_head = if distance == 1 && big {
                let blocks = u64::from(extent.stored_len) >> block_size_log2;
                format::LI_D0_CBLKCNT | u16::try_from(blocks).unwrap_or(u16::MAX)
            } else {
                distance.min(format::LI_D0_CBLKCNT - 1)
            };
            lclusters
                .push(Lcluster::NonHead { to_head, to_next: u16::try_from(next_head - number).unwrap_or(u16::MAX) });
        }
        offset = end;
        let is_last_lcluster_open = !offset.is_multiple_of(block_size) && next_head > first;
        if is_last_lcluster_open && std::ptr::eq(extent, extents.last().unwrap_or(extent)) {
            // The last extent ends within its last lcluster. A head at the end of the file marks where it ends.
            let kind = format::LCLUSTER_TYPE_PLAIN;
            lclusters.push(Lcluster::Head {
                kind,
                cluster_offset: within(offset, block_size),
                block: 0,
                partial: false,
            });
        }
    }
    lclusters
}

fn within(offset: u64, block_size: u64) -> u16 {
    u16::try_from(offset % block_size).unwrap_or(u16::MAX)
}
