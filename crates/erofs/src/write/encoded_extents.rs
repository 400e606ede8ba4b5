//! Encoded extents: a record for each extent instead of each lcluster (docs/format/erofs.md, Encoded extents).

use super::{CompressedMap, ExtentKind, low_u32};
use crate::format::{self, Extent, MapHeader};

/// The map including its header, which starts `offset` bytes after a multiple of 32.
pub(super) fn encoded_extents(map: &CompressedMap<'_>, offset: u64) -> Vec<u8> {
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
