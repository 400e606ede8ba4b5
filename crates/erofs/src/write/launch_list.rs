//! Writes the launch list (docs/format/erofs.md, Launch list).

use floe_image::{ByteRange, Nid};

use crate::format::{
    LAUNCH_LIST_COUNT_MAX, LAUNCH_LIST_MAGIC, LAUNCH_LIST_VERSION, LAUNCH_PROFILE_BYTES_MAX, LAUNCH_PROFILE_MAGIC,
    LaunchListHeader, LaunchProfileHeader, LaunchRecord,
};

/// Encodes the text of a launch profile, as it follows the launch list; empty if `text` exceeds
/// [`LAUNCH_PROFILE_BYTES_MAX`].
pub fn launch_profile(text: &[u8]) -> Vec<u8> {
    match u32::try_from(text.len()).ok().filter(|len| *len <= LAUNCH_PROFILE_BYTES_MAX) {
        Some(len) => {
            let checksum = crc32c::crc32c(text);
            let header = LaunchProfileHeader { magic: LAUNCH_PROFILE_MAGIC, len, checksum };
            [header.to_bytes().as_slice(), text].concat()
        }
        None => Vec::new(),
    }
}

/// Encodes a launch list, as it follows the last block of an image. Omits ranges after the first
/// [`LAUNCH_LIST_COUNT_MAX`].
pub fn launch_list(ranges: &[(Nid, ByteRange)]) -> Vec<u8> {
    let count_max = usize::try_from(LAUNCH_LIST_COUNT_MAX).unwrap_or(usize::MAX);
    let record =
        |(nid, range): &(Nid, ByteRange)| LaunchRecord { nid: nid.0, offset: range.offset(), len: range.len() };
    let records: Vec<u8> = ranges.iter().take(count_max).flat_map(|range| record(range).to_bytes()).collect();
    let header = LaunchListHeader {
        magic: LAUNCH_LIST_MAGIC,
        version: LAUNCH_LIST_VERSION,
        count: u32::try_from(ranges.len().min(count_max)).unwrap_or(LAUNCH_LIST_COUNT_MAX),
        checksum: crc32c::crc32c(&records),
        reserved: 0,
    };
    [header.to_bytes().as_slice(), &records].concat()
}
