//! The body of a compressed inode: the map header, and an index or extents (docs/format/erofs.md, Compressed files).
//!
//! The full index has eight bytes per lcluster (docs/format/erofs.md, Full index). The compact index consists of packs of two
//! entries in 8 bytes, or of sixteen in 32 (docs/format/erofs.md, Compact index). Encoded extents have a record for each extent
//! (docs/format/erofs.md, Encoded extents).

use super::low_u32;
use crate::format::{self, Extent, LclusterIndex, MapHeader};

/// The storage of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Uncompressed, in one block.
    Plain,
    /// Compressed.
    Encoded {
        /// Whether the pcluster decodes to more than the extent.
        partial: bool,
    },
    /// In the packed inode; allowed for the last extent only.
    Fragment,
}

/// A run of a compressed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressedExtent {
    /// The length in the file, in bytes.
    pub len: u32,
    /// The length of its pcluster in bytes, whole blocks; 0 for a fragment, one block for an inline pcluster.
    pub stored_len: u32,
    /// The first block of its pcluster; for an inline pcluster, the block that would be next.
    pub block: u64,
    /// The storage.
    pub kind: ExtentKind,
}

/// The form of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapForm {
    /// A compact index, for contiguous pclusters.
    Compact,
    /// A full index.
    Full,
    /// Encoded extents (48-bit layout only).
    Extents,
}

/// The map of a compressed file.
#[derive(Clone, Copy, Debug)]
pub struct CompressedMap<'a> {
    /// The extents in order, at least one. Each except the last reaches the end of the lcluster in which it begins.
    pub extents: &'a [CompressedExtent],
    /// A `COMPRESSION_` number.
    pub algorithm: u8,
    /// log2 of the block size, which is also the lcluster size.
    pub block_size_log2: u8,
    /// Whether the image has big pclusters.
    pub big: bool,
    /// The length of the last pcluster if it is inline, otherwise 0.
    pub inline_len: u16,
    /// The offset of the last extent in the packed inode, if it is a fragment.
    pub fragment_offset: Option<u64>,
}

impl CompressedMap<'_> {
    /// Whether a compact index can represent the map: lclusters are small enough, the pclusters are contiguous, and no
    /// extent uses part of a pcluster.
    pub fn fits_compact(&self) -> bool {
        if self.block_size_log2 > format::COMPACT_LCLUSTER_SIZE_LOG2_MAX {
            return false;
        }
        let stored = self.extents.iter().filter(|extent| extent.stored_len > 0);
        let mut next_block = None;
        let in_a_row = stored.clone().all(|extent| {
            let blocks = u64::from(extent.stored_len) >> self.block_size_log2;
            next_block.replace(extent.block + blocks).is_none_or(|expected| expected == extent.block)
        });
        let partial = self.extents.iter().any(|extent| extent.kind == ExtentKind::Encoded { partial: true });
        in_a_row && !partial && self.fragment_offset.is_none_or(|offset| offset <= u64::from(u32::MAX))
    }

    /// The map including its header. It starts at a multiple of 8 bytes, `offset` bytes after a multiple of 32.
    pub fn to_bytes(&self, form: MapForm, offset: u64) -> Vec<u8> {
        match form {
            MapForm::Extents => encoded_extents(self, offset),
            MapForm::Full => {
                let mut extents = self.extents.to_vec();
                if let (Some(last), Some(fragment_offset)) = (extents.last_mut(), self.fragment_offset) {
                    // The upper half of a fragment's offset replaces the block number.
                    last.block = fragment_offset >> 32;
                }
                let mut bytes = self.header(false).to_bytes().to_vec();
                bytes.extend([0; 8]);
                bytes.extend(full_index(&lclusters(&extents, self.block_size_log2, self.big)));
                bytes
            }
            MapForm::Compact => {
                let header_len = u64::try_from(MapHeader::SIZE).unwrap_or(0);
                let mut bytes = self.header(true).to_bytes().to_vec();
                let lclusters = lclusters(self.extents, self.block_size_log2, self.big);
                let entries = CompactEntries { lclusters: &lclusters, size_log2: self.block_size_log2, big: self.big };
                bytes.extend(entries.to_bytes(offset + header_len));
                bytes
            }
        }
    }

    fn header(&self, is_compact: bool) -> MapHeader {
        let mut h_advise = 0;
        if is_compact && has_large_packs(self.block_size_log2) {
            h_advise |= format::ADVISE_COMPACTED_2B;
        }
        if self.big {
            h_advise |= format::ADVISE_BIG_PCLUSTER_1;
            if is_compact {
                h_advise |= format::ADVISE_BIG_PCLUSTER_2;
            }
        }
        let mut h_u = u32::from(self.inline_len) << 16;
        if self.inline_len > 0 {
            h_advise |= format::ADVISE_INLINE_PCLUSTER;
        }
        if let Some(fragment_offset) = self.fragment_offset {
            h_advise |= format::ADVISE_FRAGMENT_PCLUSTER;
            h_u = low_u32(fragment_offset);
        }
        MapHeader { h_u, h_advise, h_algorithmtype: self.algorithm, h_clusterbits: 0 }
    }
}

/// The map of a file that is entirely in the packed inode, at `fragment_offset`.
pub fn whole_fragment_map(fragment_offset: u64) -> Vec<u8> {
    let flagged = fragment_offset | 1 << (56 + u32::from(format::FRAGMENT_INODE_BIT));
    flagged.to_le_bytes().to_vec()
}

/// The full index.
fn full_index(lclusters: &[Lcluster]) -> Vec<u8> {
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
fn has_large_packs(lcluster_size_log2: u8) -> bool {
    lcluster_size_log2 <= format::COMPACT_2B_LCLUSTER_SIZE_LOG2_MAX
}

/// The lclusters of a file whose pclusters are contiguous.
struct CompactEntries<'a> {
    lclusters: &'a [Lcluster],
    /// log2 of the lcluster size, at most [`format::COMPACT_LCLUSTER_SIZE_LOG2_MAX`].
    size_log2: u8,
    /// Whether the image has big pclusters.
    big: bool,
}

impl CompactEntries<'_> {
    /// The index, starting `offset` bytes after a multiple of 32.
    fn to_bytes(&self, offset: u64) -> Vec<u8> {
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

/// The map including its header, which starts `offset` bytes after a multiple of 32.
fn encoded_extents(map: &CompressedMap<'_>, offset: u64) -> Vec<u8> {
    let size: u64 = map.extents.iter().map(|extent| u64::from(extent.len)).sum();
    // Records of 16 bytes have 32 bits for the offset in the file, records of 32 bytes 64.
    let record_len_log2: u16 = if size > u64::from(u32::MAX) { 5 } else { 4 };
    let record_len = 1u64 << record_len_log2;
    let count = u64::try_from(map.extents.len()).unwrap_or(u64::MAX);
    let upper = u16::try_from(count >> 32).unwrap_or(u16::MAX).to_le_bytes();
    let [h_algorithmtype, h_clusterbits] = upper;
    let mut h_advise = format::ADVISE_EXTENTS | (record_len_log2 - 2) << format::ADVISE_EXTRECSZ_BIT;
    if map.fragment_offset.is_some() {
        h_advise |= format::ADVISE_FRAGMENT_PCLUSTER;
    }
    let header = MapHeader { h_u: low_u32(count), h_advise, h_algorithmtype, h_clusterbits };
    let mut bytes = header.to_bytes().to_vec();
    let header_len = u64::try_from(MapHeader::SIZE).unwrap_or(0);
    let first = (offset + header_len).next_multiple_of(record_len) - offset;
    bytes.resize(usize::try_from(first).unwrap_or(0), 0);
    let mut start = 0u64;
    for extent in map.extents {
        let place = extent.block << map.block_size_log2;
        let (plen, place) = match (extent.kind, map.fragment_offset) {
            (ExtentKind::Plain, _) => (extent.stored_len, place),
            (ExtentKind::Fragment, fragment_offset) => {
                let fragment_offset = fragment_offset.unwrap_or(0);
                (low_u32(fragment_offset), fragment_offset >> 32)
            }
            (ExtentKind::Encoded { partial }, _) => {
                let algorithm = (u32::from(map.algorithm) + 1) << format::EXTENT_PLEN_FMT_BIT;
                let partial = if partial { format::EXTENT_PLEN_PARTIAL } else { 0 };
                (extent.stored_len | algorithm | partial, place)
            }
        };
        let record = Extent {
            plen,
            pstart_lo: low_u32(place),
            pstart_hi: low_u32(place >> 32),
            lstart_lo: low_u32(start),
            lstart_hi: low_u32(start >> 32),
            reserved: [0; 12],
        };
        let len = usize::try_from(record_len).unwrap_or(Extent::SIZE);
        bytes.extend(record.to_bytes().iter().take(len));
        start += u64::from(extent.len);
    }
    bytes
}

/// One lcluster of a compressed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lcluster {
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
fn lclusters(extents: &[CompressedExtent], block_size_log2: u8, big: bool) -> Vec<Lcluster> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(len: u32, blocks: u32, block: u64) -> CompressedExtent {
        CompressedExtent { len, stored_len: blocks << 12, block, kind: ExtentKind::Encoded { partial: false } }
    }

    #[test]
    fn compact_indexes_need_pclusters_in_a_row() {
        let row = [extent(9000, 2, 5), extent(9000, 1, 7)];
        let gap = [extent(9000, 2, 5), extent(9000, 1, 8)];
        let partial = [CompressedExtent { kind: ExtentKind::Encoded { partial: true }, ..extent(9000, 2, 5) }];
        for (extents, fragment_offset, expected) in [
            (row.as_slice(), None, true),
            (&row, Some(5), true),
            (&row, Some(1 << 32), false),
            (&gap, None, false),
            (&partial, None, false),
        ] {
            let map =
                CompressedMap { extents, algorithm: 0, block_size_log2: 12, big: true, inline_len: 0, fragment_offset };
            assert_eq!(map.fits_compact(), expected, "{map:?}");
        }
    }
}
