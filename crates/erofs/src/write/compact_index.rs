//! The compact index: packs of two entries in 8 bytes, or of sixteen in 32 (docs/format/erofs.md, Compact index).

use super::{lclusters::Lcluster, low_u32};
use crate::format;

/// Entries per pack of 32 bytes.
const LARGE_PACK_COUNT: usize = 16;
/// Entries per pack of 8 bytes.
const SMALL_PACK_COUNT: usize = 2;
/// Bits per entry in a pack of 32 bytes.
const LARGE_PACK_ENTRY_BITS: usize = 14;
/// Bits per entry in a pack of 8 bytes.
const SMALL_PACK_ENTRY_BITS: usize = 16;
/// The alignment of large packs in bytes.
const LARGE_PACK_LEN: u64 = 32;
/// The minimum number of bits in an entry besides its type: enough for a block count and its flag.
const LOW_BITS_MIN: u8 = 12;

/// Whether the entries of packs of sixteen have enough bits for this lcluster size.
pub(super) fn has_large_packs(lcluster_size_log2: u8) -> bool {
    lcluster_size_log2 <= format::COMPACT_2B_LCLUSTER_SIZE_LOG2_MAX
}

/// The lclusters of a file whose pclusters are contiguous.
pub(super) struct CompactEntries<'a> {
    pub(super) lclusters: &'a [Lcluster],
    /// log2 of the lcluster size, at most [`format::COMPACT_LCLUSTER_SIZE_LOG2_MAX`].
    pub(super) size_log2: u8,
    /// Whether the image has big pclusters.
    pub(super) big: bool,
}

impl CompactEntries<'_> {
    /// The index, starting `offset` bytes after a multiple of 32.
    pub(super) fn to_bytes(&self, offset: u64) -> Vec<u8> {
        let to_large = (LARGE_PACK_LEN - offset % LARGE_PACK_LEN) % LARGE_PACK_LEN / 4;
        let to_large = usize::try_from(to_large).unwrap_or(0);
        let (initial_count, large_packs) = match has_large_packs(self.size_log2) {
            true if to_large < self.lclusters.len() => (to_large, (self.lclusters.len() - to_large) / LARGE_PACK_COUNT),
            true => (0, self.lclusters.len() / LARGE_PACK_COUNT),
            false => (0, 0),
        };
        let (initial, rest) = self.lclusters.split_at(initial_count);
        let (large, last) = rest.split_at(large_packs * LARGE_PACK_COUNT);
        let mut bytes = Vec::new();
        for (lclusters, count) in [(initial, SMALL_PACK_COUNT), (large, LARGE_PACK_COUNT), (last, SMALL_PACK_COUNT)] {
            lclusters.chunks(count).for_each(|pack| self.put_pack(pack, count, &mut bytes));
        }
        bytes
    }

    /// Appends a pack of `count` entries with its base block.
    fn put_pack(&self, lclusters: &[Lcluster], count: usize, bytes: &mut Vec<u8>) {
        let entry_bits = if count == LARGE_PACK_COUNT { LARGE_PACK_ENTRY_BITS } else { SMALL_PACK_ENTRY_BITS };
        let low_bits = LOW_BITS_MIN.max(self.size_log2);
        let mut entries = vec![0u8; (count * entry_bits).div_ceil(8)];
        for (number, lcluster) in lclusters.iter().enumerate() {
            let (kind, low) = match *lcluster {
                Lcluster::Head { kind, cluster_offset, .. } => (kind, cluster_offset),
                Lcluster::NonHead { to_head, to_next } => {
                    let is_count = to_head & format::LI_D0_CBLKCNT != 0;
                    // The last entry of a pack holds the distance to the next head; the reader derives its distance
                    // back from the entry before.
                    let low =
                        if number + 1 == count && !is_count { to_next.min(format::LI_D0_CBLKCNT - 1) } else { to_head };
                    (format::LCLUSTER_TYPE_NONHEAD, low)
                }
            };
            put_bits(&mut entries, number * entry_bits, u32::from(kind) << low_bits | u32::from(low));
        }
        bytes.extend(entries);
        bytes.extend(low_u32(base_block(lclusters, self.big)).to_le_bytes());
    }
}

/// The base block of a pack. Without big pclusters, each head adds one before it is used. With big pclusters, the block
/// counts in the pack before a head are added up, including that of a pcluster which began in the previous pack.
fn base_block(lclusters: &[Lcluster], big: bool) -> u64 {
    let first_head = lclusters.iter().find_map(|lcluster| match *lcluster {
        Lcluster::Head { block, .. } => Some(block),
        Lcluster::NonHead { .. } => None,
    });
    let before = match lclusters.first() {
        _ if !big => 1,
        Some(Lcluster::NonHead { to_head, .. }) if to_head & format::LI_D0_CBLKCNT != 0 => {
            u64::from(to_head & !format::LI_D0_CBLKCNT)
        }
        _ => 0,
    };
    first_head.unwrap_or(0).wrapping_sub(before)
}

fn put_bits(bytes: &mut [u8], position: usize, value: u32) {
    let shifted = u64::from(value) << (position % 8);
    for (byte, part) in bytes.iter_mut().skip(position / 8).zip(shifted.to_le_bytes()) {
        *byte |= part;
    }
}
