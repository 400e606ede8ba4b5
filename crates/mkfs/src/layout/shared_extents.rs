//! Extents that refer to existing pclusters.

use floe_erofs::write::{CompressedExtent, ExtentKind};

/// A range of a file whose data is already stored, between other extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// Its start in the file, in bytes.
    pub(crate) start: u64,
    /// Its end.
    pub(crate) end: u64,
    /// Whether the file ends there.
    pub(crate) ends_file: bool,
}

/// Extents that fill a gap from its beginning by referring to the pclusters of `source`, and their total length. The
/// rest is empty, or long enough to be stored as an extent.
pub(crate) fn shared_extents(source: &[CompressedExtent], gap: Gap, block_size: u64) -> (Vec<CompressedExtent>, u64) {
    let mut taken: Vec<CompressedExtent> = Vec::new();
    let mut at = gap.start;
    for extent in source {
        let len = u64::from(extent.len).min(gap.end - at);
        if extent.stored_len == 0 || len == 0 || len < least_len(extent, at, block_size) {
            break;
        }
        taken.push(part_of(extent, len));
        at += len;
    }
    let last_start = gap.end - gap.end % block_size;
    if gap.ends_file || gap.end.is_multiple_of(block_size) {
        return (taken, at - gap.start);
    }
    // The rest must begin in another lcluster than the data after the gap.
    while at < gap.end && at >= last_start {
        let Some(last) = taken.pop() else { break };
        at -= u64::from(last.len);
        let shorter = (gap.end - 2 * block_size).checked_sub(at).filter(|len| *len < u64::from(last.len));
        if let Some(len) = shorter.filter(|len| *len >= least_len(&last, at, block_size)) {
            taken.push(part_of(&last, len));
            at += len;
        }
    }
    (taken, at - gap.start)
}

/// The minimum length of an extent that begins at `at`: it must reach the end of its lcluster, and the end of the next
/// one if that has to hold the block count.
fn least_len(extent: &CompressedExtent, at: u64, block_size: u64) -> u64 {
    let lclusters = if u64::from(extent.stored_len) > block_size { 2 } else { 1 };
    lclusters * block_size - at % block_size
}

fn part_of(extent: &CompressedExtent, len: u64) -> CompressedExtent {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let kind = match extent.kind {
        ExtentKind::Encoded { partial } => ExtentKind::Encoded { partial: partial || len < extent.len },
        kind => kind,
    };
    CompressedExtent { len, kind, ..*extent }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn extent(len: u32, blocks: u32, block: u64) -> CompressedExtent {
        let kind = if blocks == 1 && len == 4096 { ExtentKind::Plain } else { ExtentKind::Encoded { partial: false } };
        CompressedExtent { len, stored_len: blocks * 4096, block, kind }
    }

    /// Checks that an index can represent extents that begin at `start` and end at `end`, with others after them.
    fn check(extents: &[CompressedExtent], start: u64, end: u64, is_last: bool) {
        let mut at = start;
        for (number, extent) in extents.iter().enumerate() {
            let next = at + u64::from(extent.len);
            let is_last = is_last && number + 1 == extents.len();
            assert!(is_last || next / BLOCK > at / BLOCK, "{extent:?} at {at} begins and ends in one lcluster");
            assert!(extent.stored_len <= 4096 || next / BLOCK > at / BLOCK + 1, "{extent:?} at {at} has no room");
            at = next;
        }
        assert_eq!(at, end);
    }

    #[test]
    fn gaps_are_filled_as_far_as_the_index_allows() {
        let source = [extent(100_000, 16, 1), extent(4096, 1, 17), extent(9000, 2, 18), extent(150_000, 16, 20)];
        let whole: u64 = source.iter().map(|extent| u64::from(extent.len)).sum();
        for start in [0, 4096, 5000, 8191] {
            for len in [
                1, 4095, 4096, 8192, 12_345, 99_999, 100_000, 100_001, 104_095, 104_096, 113_095, 113_096, 120_000,
                200_000,
            ]
            .into_iter()
            .chain(whole - 3..=whole + 3)
            {
                for ends_file in [false, true] {
                    let gap = Gap { start, end: start + len, ends_file };
                    let (extents, taken) = shared_extents(&source, gap, BLOCK);
                    check(&extents, start, start + taken, ends_file && taken == len);
                    assert!(taken <= len);
                    assert!(taken + 70_000 > len.min(whole) || len < 110_000 && taken + 9000 > len, "{taken} of {len}");
                    for (extent, source) in extents.iter().zip(&source) {
                        assert!(extent.len <= source.len && extent.block == source.block);
                        let is_partial = extent.kind == ExtentKind::Encoded { partial: true };
                        assert_eq!(is_partial, extent.len < source.len && source.kind != ExtentKind::Plain);
                    }
                    let end = start + len;
                    let is_followed = !ends_file && end % BLOCK > 0 && end / BLOCK > start / BLOCK;
                    assert!(!is_followed || taken == len || (start + taken) / BLOCK < end / BLOCK, "{taken} of {len}");
                }
            }
        }
    }
}
