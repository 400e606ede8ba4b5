//! The pclusters and chunks that the image already has, for deduplication, and the extents that refer to them.

use std::collections::{HashMap, hash_map::Entry};

use floe_erofs::write::{Chunk, CompressedExtent, ExtentKind};
use xxhash_rust::xxh64::xxh64;

use crate::{compress::piece::HashedChunk, error::Result, files::image_file::ImageFile};

/// How much longer an entry of a full index is than one of a compact index, in bytes.
const INDEX_COST: u64 = 6;

/// The identity of a pcluster: the hash of the stored bytes, the algorithm if they are compressed, and the decoded
/// length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    hash: [u8; 8],
    is_plain: bool,
    algorithm: u8,
    len: [u8; 4],
}

/// The pclusters in the image. Files or segments with the same beginning have equal pclusters.
#[derive(Default)]
pub(crate) struct KnownPclusters {
    /// The block of each, as six bytes: there may be millions.
    known: HashMap<Key, [u8; 6]>,
    /// The algorithm of the current file, and the keys added for it.
    algorithm: u8,
    current: Vec<Key>,
    duplicate_bytes: u64,
}

/// The decision about a pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// New: store it.
    Store,
    /// Present at this block.
    Known(u64),
}

impl KnownPclusters {
    /// How many file bytes were found as duplicates.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Begins a file with this compression algorithm.
    pub(crate) fn begin_file(&mut self, algorithm: u8) {
        self.algorithm = algorithm;
        self.current.clear();
    }

    /// Removes the current file's pclusters, because its data is discarded.
    pub(crate) fn forget_file(&mut self) {
        for key in self.current.drain(..) {
            self.known.remove(&key);
        }
    }

    /// Decides about each pcluster of a segment with these stored bytes; `size` is that of the file. Noncontiguous
    /// pclusters make the file's index longer, so a few small duplicates are stored again.
    pub(crate) fn verdicts(
        &self,
        extents: &[CompressedExtent],
        stored: &[u8],
        image: &mut ImageFile,
        block_size: u64,
        size: u64,
    ) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::with_capacity(extents.len());
        let mut saved = 0;
        for (key, bytes) in keyed(extents, stored, self.algorithm) {
            let block = key.and_then(|key| self.known.get(&key)).map(|block| number_of(*block));
            verdicts.push(match block {
                Some(block) if image.holds(block * block_size, bytes)? => {
                    saved += bytes.len() as u64;
                    Verdict::Known(block)
                }
                _ => Verdict::Store,
            });
        }
        if saved <= size / block_size * INDEX_COST {
            verdicts.fill(Verdict::Store);
        }
        Ok(verdicts)
    }

    /// Records the positions of a segment's pclusters.
    pub(crate) fn learn(&mut self, extents: &[CompressedExtent], stored: &[u8], verdicts: &[Verdict], blocks: &[u64]) {
        for (((key, _), verdict), block) in keyed(extents, stored, self.algorithm).zip(verdicts).zip(blocks) {
            match (key, verdict) {
                (Some(key), Verdict::Known(_)) => self.duplicate_bytes += u64::from(u32::from_le_bytes(key.len)),
                (Some(key), Verdict::Store) => {
                    if let Entry::Vacant(entry) = self.known.entry(key) {
                        entry.insert(six_bytes(*block));
                        self.current.push(key);
                    }
                }
                (None, _) => {}
            }
        }
    }
}

/// A block number as bytes; the format has at most 48 bits.
fn six_bytes(block: u64) -> [u8; 6] {
    let [bytes @ .., _, _] = block.to_le_bytes();
    bytes
}

fn number_of([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The stored bytes and the key of each extent; `None` for inline extents and fragments.
fn keyed<'a>(
    extents: &'a [CompressedExtent],
    stored: &'a [u8],
    algorithm: u8,
) -> impl Iterator<Item = (Option<Key>, &'a [u8])> + 'a {
    let mut rest = stored;
    extents.iter().map(move |extent| {
        let len = usize::try_from(extent.stored_len).unwrap_or(usize::MAX);
        let Some((bytes, after)) = rest.split_at_checked(len).filter(|(bytes, _)| !bytes.is_empty()) else {
            return (None, &[][..]);
        };
        rest = after;
        let is_plain = extent.kind == ExtentKind::Plain;
        let hash = xxh64(bytes, 0).to_le_bytes();
        (Some(Key { hash, is_plain, algorithm, len: extent.len.to_le_bytes() }), bytes)
    })
}

/// The chunks in the image or the blob device.
#[derive(Default)]
pub(crate) struct KnownChunks {
    known: HashMap<([u8; 32], usize), Chunk>,
    duplicate_bytes: u64,
}

impl KnownChunks {
    /// How many bytes were found as duplicates.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Appends the chunks of `data` that are new to `file`, which has this device number.
    pub(crate) fn add(
        &mut self,
        data: &[u8],
        chunks: &[HashedChunk],
        device: u16,
        block_size: u64,
        file: &mut ImageFile,
    ) -> Result<Vec<Chunk>> {
        let mut stored = Vec::with_capacity(chunks.len());
        let mut rest = data;
        for chunk in chunks {
            let (bytes, after) = rest.split_at(chunk.len);
            rest = after;
            let Some(digest) = chunk.digest else {
                stored.push(Chunk::Hole);
                continue;
            };
            let stored_chunk = match self.known.get(&(digest, chunk.len)) {
                Some(stored_chunk) => {
                    self.duplicate_bytes += chunk.len as u64;
                    *stored_chunk
                }
                None => {
                    let stored_chunk = Chunk::Blocks { device, block: file.len() / block_size };
                    file.append(bytes)?;
                    file.pad(block_size)?;
                    self.known.insert((digest, chunk.len), stored_chunk);
                    stored_chunk
                }
            };
            stored.push(stored_chunk);
        }
        Ok(stored)
    }
}

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
