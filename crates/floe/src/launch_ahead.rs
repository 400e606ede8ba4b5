//! The bytes of an image that a recorded launch will need.

use floe_image::{ByteRange, DeviceId, ExtentData, FileSystem, Nid, StoredLen};

/// The maximum number of bytes that are requested in total.
const WANTED_BYTES_MAX: u64 = 256 << 20;
/// Runs with at most this gap between them are requested as one, in bytes.
pub(crate) const GAP_MAX: u64 = 64 << 10;
/// The assumed stored length of a block whose length is unknown before it is read, in bytes.
const UNKNOWN_LEN: u64 = 8 << 10;

/// Returns the offsets and lengths at which the image file stores the data of `ranges`, in their order. Runs with at
/// most `gap_max` bytes between them are joined; ranges that cannot be resolved are skipped.
pub(crate) fn stored_runs(file_system: &dyn FileSystem, ranges: &[(Nid, ByteRange)], gap_max: u64) -> Vec<(u64, u64)> {
    let (mut runs, mut extents, mut bytes) = (Vec::<(u64, u64)>::new(), Vec::new(), 0);
    for (nid, range) in ranges {
        extents.clear();
        let Ok(attr) = file_system.attr(*nid) else { continue };
        let range = range.intersection(ByteRange::new(0, attr.size));
        // Bounds the mapping work that a launch list can cause.
        let range = ByteRange::new(range.offset(), range.len().min(WANTED_BYTES_MAX));
        if range.is_empty() || file_system.map(*nid, range, &mut extents).is_err() {
            continue;
        }
        for extent in &extents {
            let (device, offset, len) = match extent.data {
                ExtentData::Hole => continue,
                ExtentData::Plain { device, offset } => {
                    // The extent may begin before the range, and end after it.
                    let part = extent.range.intersection(range);
                    (device, offset.saturating_add(part.offset() - extent.range.offset()), part.len())
                }
                ExtentData::Encoded { block, .. } => match block.stored_len {
                    StoredLen::Known(len) => (block.device, block.offset, u64::from(len)),
                    StoredLen::Prefixed => (block.device, block.offset, UNKNOWN_LEN),
                },
            };
            if device != DeviceId(0) {
                continue;
            }
            let end = offset.saturating_add(len);
            match runs.last_mut() {
                Some((start, run_len)) if offset >= *start && offset <= (*start + *run_len).saturating_add(gap_max) => {
                    *run_len = (*run_len).max(end - *start);
                }
                _ => runs.push((offset, len)),
            }
            bytes += len;
            if bytes > WANTED_BYTES_MAX {
                return runs;
            }
        }
    }
    runs
}
