//! The pclusters and chunks that the image already has, for deduplication.

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
    hash: u64,
    is_plain: bool,
    algorithm: u8,
    len: u32,
}

/// The pclusters in the image. Files or segments with the same beginning have equal pclusters.
#[derive(Default)]
pub(crate) struct KnownPclusters {
    known: HashMap<Key, u64>,
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
            let block = key.and_then(|key| self.known.get(&key)).copied();
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
                (Some(key), Verdict::Known(_)) => self.duplicate_bytes += u64::from(key.len),
                (Some(key), Verdict::Store) => {
                    if let Entry::Vacant(entry) = self.known.entry(key) {
                        entry.insert(*block);
                        self.current.push(key);
                    }
                }
                (None, _) => {}
            }
        }
    }
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
        (Some(Key { hash: xxh64(bytes, 0), is_plain, algorithm, len: extent.len }), bytes)
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
