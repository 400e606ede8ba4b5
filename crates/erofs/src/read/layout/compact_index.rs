//! Compact lcluster indexes (docs/format/erofs.md, Compact index).

use floe_image::{Error, Place, Result};

use super::{Head, HeadKind, Lcluster, Loaded};
use crate::{format, read::window::Window};

/// The minimum number of bits in the lower part of an entry: enough for a distance and its flag.
const LOW_BITS_MIN: u32 = 12;
/// The length of the block number at the end of a pack, in bytes.
const PACK_TRAILER_LEN: u64 = 4;

/// The compact index of an inode: packs of two entries in 8 bytes up to the first multiple of 32 bytes, then as many
/// packs of sixteen entries in 32 bytes as fill up, then packs of two again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct CompactIndex {
    /// The position of its first byte.
    pub(super) start: u64,
    /// The number of entries: one for each block of the file.
    pub(super) entry_count: u64,
    pub(super) lcluster_size_log2: u8,
    /// Whether packs of sixteen are used.
    pub(super) has_large_packs: bool,
    /// Whether pclusters may have several blocks, so that the entry after a head states the block count.
    pub(super) counts_blocks: bool,
}

/// A pack of entries.
struct Pack {
    position: u64,
    entry_count: u64,
    len: u64,
}

impl CompactIndex {
    /// Decodes the entry of lcluster `number`.
    ///
    /// # Errors
    /// The pack cannot be read or breaks the format.
    pub(super) fn load(&self, window: &mut Window<'_>, number: u64) -> Result<Loaded> {
        let (pack, index) = self.pack_of(number)?;
        let len = usize::try_from(pack.len).unwrap_or(0);
        let entries = Entries {
            bytes: window.read(pack.position, len)?,
            entry_bits: (pack.len - PACK_TRAILER_LEN) * 8 / pack.entry_count,
            low_bits: LOW_BITS_MIN.max(u32::from(self.lcluster_size_log2)),
            count: pack.entry_count,
        };
        let lcluster = match self.counts_blocks {
            true => entries.lcluster_of_counted(index),
            false => entries.lcluster_of_single(index),
        };
        let lcluster = lcluster.map_err(|rule| Error::corrupt(rule, Place::at(pack.position)))?;
        Ok(Loaded { lcluster, record_end: pack.position + pack.len })
    }

    /// The pack that contains lcluster `number`, and its index in the pack.
    fn pack_of(&self, number: u64) -> Result<(Pack, u64)> {
        let place = Place::at(self.start);
        if number >= self.entry_count {
            return Err(Error::corrupt("lcluster past the compact index", place));
        }
        let small_before = (32 - self.start % 32) / 4 % 8;
        let large = match self.has_large_packs {
            true => self.entry_count.saturating_sub(small_before) / 16 * 16,
            false => 0,
        };
        let (is_large, position) = match number.checked_sub(small_before) {
            None => (false, number * 4),
            Some(past) if past < large => (true, small_before * 4 + past * 2),
            Some(past) => (false, small_before * 4 + large * 2 + (past - large) * 4),
        };
        if is_large && self.lcluster_size_log2 > format::COMPACT_2B_LCLUSTER_SIZE_LOG2_MAX {
            return Err(Error::corrupt("large packs for lclusters above 4 KiB", place));
        }
        let position = self.start.checked_add(position).ok_or(Error::corrupt("index past the address space", place))?;
        let (entry_count, len, entry_len) = if is_large { (16, 32, 2) } else { (2, 8, 4) };
        let index = position % len / entry_len;
        Ok((Pack { position: position - position % len, entry_count, len }, index))
    }
}

/// The entries of a pack.
struct Entries<'pack> {
    bytes: &'pack [u8],
    entry_bits: u64,
    low_bits: u32,
    count: u64,
}

/// An entry: its type and its lower part.
struct Entry {
    kind: u16,
    low: u64,
}

impl Entry {
    fn is_non_head(&self) -> bool {
        self.kind == format::LCLUSTER_TYPE_NONHEAD
    }

    /// The block count, if the entry states one.
    fn block_count(&self) -> Option<u64> {
        let flag = u64::from(format::LI_D0_CBLKCNT);
        (self.is_non_head() && self.low & flag != 0).then_some(self.low & !flag)
    }
}

impl Entries<'_> {
    /// Entry `index`; zero beyond the pack.
    fn entry(&self, index: u64) -> Entry {
        let bit = index * self.entry_bits;
        let word = usize::try_from(bit / 8).ok().and_then(|byte| self.bytes.get(byte..)).and_then(<[u8]>::first_chunk);
        let value = word.map_or(0, |word| u32::from_le_bytes(*word) >> (bit % 8));
        let kind = u16::try_from(value >> self.low_bits & 3).unwrap_or(0);
        Entry { kind, low: u64::from(value & ((1 << self.low_bits) - 1)) }
    }

    /// The block number at the end of the pack.
    fn base_block(&self) -> u64 {
        self.bytes.last_chunk().map_or(0, |word| u64::from(u32::from_le_bytes(*word)))
    }

    /// Decodes entry `index` if every pcluster has one block.
    fn lcluster_of_single(&self, index: u64) -> Result<Lcluster, &'static str> {
        let entry = self.entry(index);
        if entry.block_count().is_some() {
            return Err("block count without big pclusters");
        }
        self.lcluster(index, &entry, || {
            let (mut earlier_heads, mut at) = (0, index);
            while let Some(before) = at.checked_sub(1) {
                let entry = self.entry(before);
                match entry.is_non_head() {
                    false => (earlier_heads, at) = (earlier_heads + 1, before),
                    true => match before.checked_sub(entry.low) {
                        Some(head) => (earlier_heads, at) = (earlier_heads + 1, head),
                        None => break,
                    },
                }
            }
            Some(earlier_heads + 1)
        })
    }

    /// Decodes entry `index` if pclusters may have several blocks.
    fn lcluster_of_counted(&self, index: u64) -> Result<Lcluster, &'static str> {
        let entry = self.entry(index);
        self.lcluster(index, &entry, || {
            let (mut blocks, mut at) = (0, index);
            while let Some(before) = at.checked_sub(1) {
                let entry = self.entry(before);
                at = match (entry.is_non_head(), entry.block_count()) {
                    (false, _) => {
                        blocks += 1;
                        before
                    }
                    (true, Some(count)) => {
                        blocks += count;
                        before.saturating_sub(1)
                    }
                    // The head is `low` entries back; the entry after it states the block count.
                    (true, None) => before.saturating_sub(entry.low.checked_sub(2)?),
                };
            }
            Some(blocks)
        })
    }

    /// Decodes an entry; `blocks_before` returns the distance of its block from the pack's base.
    fn lcluster(
        &self,
        index: u64,
        entry: &Entry,
        blocks_before: impl FnOnce() -> Option<u64>,
    ) -> Result<Lcluster, &'static str> {
        let kind = match entry.kind {
            format::LCLUSTER_TYPE_PLAIN => HeadKind::Plain,
            format::LCLUSTER_TYPE_HEAD1 => HeadKind::First,
            format::LCLUSTER_TYPE_HEAD2 => HeadKind::Second,
            _ => {
                let to_head = if entry.block_count().is_some() { 1 } else { self.to_head(index, entry) };
                let (to_next_head, block_count) = (self.to_next_head(index), entry.block_count());
                return Ok(Lcluster::NonHead { to_head, to_next_head, block_count });
            }
        };
        let blocks_before = blocks_before().ok_or("distance of one without a block count")?;
        let block = self.base_block() + blocks_before;
        Ok(Lcluster::Head(Head { kind, offset: entry.low, block, is_hole: false, is_partial: false }))
    }

    /// The distance back to the head. The last entry of a pack holds the distance ahead instead.
    fn to_head(&self, index: u64, entry: &Entry) -> u64 {
        match index.checked_sub(1).filter(|_| index + 1 == self.count) {
            None => entry.low,
            Some(before) => {
                let before = self.entry(before);
                match (before.is_non_head(), before.block_count()) {
                    (false, _) => 1,
                    (true, Some(_)) => 2,
                    (true, None) => before.low + 1,
                }
            }
        }
    }

    /// The distance ahead to the next head, as far as the pack reaches.
    fn to_next_head(&self, index: u64) -> u64 {
        for ahead in index..self.count {
            if !self.entry(ahead).is_non_head() {
                return ahead - index;
            }
        }
        let last = self.entry(self.count.saturating_sub(1));
        let known = self.count - index;
        if last.block_count().is_some() { known } else { (known + last.low).saturating_sub(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(start: u64, entry_count: u64, has_large_packs: bool) -> CompactIndex {
        CompactIndex { start, entry_count, lcluster_size_log2: 12, has_large_packs, counts_blocks: false }
    }

    #[test]
    fn packs_are_small_up_to_a_multiple_of_32_and_at_the_end() {
        for (start, number, position, len, expected_index) in [
            (8, 0, 8, 8, 0),
            (8, 5, 24, 8, 1),
            (8, 6, 32, 32, 0),
            (8, 21, 32, 32, 15),
            (8, 22, 64, 32, 0),
            (8, 38, 96, 8, 0),
            (8, 39, 96, 8, 1),
            (32, 0, 32, 32, 0),
            (24, 1, 24, 8, 1),
        ] {
            let (pack, found) = index(start, 40, true).pack_of(number).expect("the entry exists");
            assert_eq!((pack.position, pack.len, found), (position, len, expected_index), "{start} {number}");
        }
        assert_eq!(index(8, 40, false).pack_of(39).map(|(pack, at)| (pack.position, at)).ok(), Some((160, 1)));
        assert!(index(8, 40, true).pack_of(40).is_err());
    }

    /// A pack of two entries, each with a type and a lower part of 12 bits.
    fn pack_of_two(entries: [(u32, u32); 2], block: u32) -> Vec<u8> {
        let words = entries.map(|(kind, low)| u16::try_from(kind << 12 | low).expect("14 bits"));
        [&words[0].to_le_bytes()[..], &words[1].to_le_bytes(), &block.to_le_bytes()].concat()
    }

    fn entries(bytes: &[u8]) -> Entries<'_> {
        Entries { bytes, entry_bits: 16, low_bits: 12, count: 2 }
    }

    #[test]
    fn entries_of_a_pack_of_two() {
        let head =
            |kind, offset, block| Lcluster::Head(Head { kind, offset, block, is_hole: false, is_partial: false });
        let non_head = |to_head, to_next_head, block_count| Lcluster::NonHead { to_head, to_next_head, block_count };
        for (pack, index, single, counted) in [
            ([(1, 5), (1, 6)], 0, head(HeadKind::First, 5, 41), Some(head(HeadKind::First, 5, 40))),
            ([(1, 5), (1, 6)], 1, head(HeadKind::First, 6, 42), Some(head(HeadKind::First, 6, 41))),
            ([(0, 5), (2, 3)], 1, non_head(1, 3, None), Some(non_head(1, 3, None))),
            ([(2, 2), (2, 3)], 1, non_head(3, 3, None), Some(non_head(3, 3, None))),
            ([(2, 2), (2, 3)], 0, non_head(2, 4, None), Some(non_head(2, 4, None))),
            ([(2, 2), (3, 9)], 0, non_head(2, 1, None), Some(non_head(2, 1, None))),
            ([(2, 2), (3, 9)], 1, head(HeadKind::Second, 9, 41), Some(head(HeadKind::Second, 9, 40))),
            ([(2, 1), (3, 9)], 1, head(HeadKind::Second, 9, 41), None),
        ] {
            let bytes = pack_of_two(pack, 40);
            assert_eq!(entries(&bytes).lcluster_of_single(index), Ok(single), "{pack:?} {index}");
            assert_eq!(entries(&bytes).lcluster_of_counted(index).ok(), counted, "{pack:?} {index}");
        }
        let bytes = pack_of_two([(2, 0x803), (1, 0)], 40);
        assert!(entries(&bytes).lcluster_of_single(0).is_err());
        assert_eq!(entries(&bytes).lcluster_of_counted(0), Ok(non_head(1, 1, Some(3))));
        assert_eq!(entries(&bytes).lcluster_of_counted(1), Ok(head(HeadKind::First, 0, 43)));
    }
}
