//! The pclusters that are in the image, so that an equal one is not stored again.

use std::collections::HashMap;

use floe_erofs::write::{CompressedExtent, ExtentKind};
use xxhash_rust::xxh64::xxh64;

use crate::{error::Result, image_file::ImageFile};

/// About what an entry of a full index takes more than one of a compact index, in bytes.
const INDEX_COST: u64 = 6;

/// What tells one pcluster from another: the hash of the stored bytes, whether they are compressed and how, and what
/// they are for, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    hash: u64,
    is_plain: bool,
    algorithm: u8,
    len: u32,
}

/// The pclusters that are in the image. Files that begin alike, or whose segments do, have equal ones.
#[derive(Default)]
pub(crate) struct StoredBlocks {
    known: HashMap<Key, u64>,
    /// The algorithm of the current file, and what came with it.
    algorithm: u8,
    current: Vec<Key>,
    duplicate_bytes: u64,
}

/// What to do about a pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is not there.
    Store,
    /// It is there, at this block.
    Known(u64),
}

impl StoredBlocks {
    /// How many bytes of files were there already.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Begins another file, compressed with this algorithm.
    pub(crate) fn begin_file(&mut self, algorithm: u8) {
        self.algorithm = algorithm;
        self.current.clear();
    }

    /// Forgets the current file's pclusters, because they are taken back.
    pub(crate) fn forget_file(&mut self) {
        for key in self.current.drain(..) {
            self.known.remove(&key);
        }
    }

    /// What to do about each pcluster of a segment whose stored bytes are given; `size` is the file's. Pclusters out of a
    /// row make the file's index larger, so that a few small ones are stored again.
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

    /// Learns where the pclusters of a segment are.
    pub(crate) fn learn(&mut self, extents: &[CompressedExtent], stored: &[u8], verdicts: &[Verdict], blocks: &[u64]) {
        for (((key, _), verdict), block) in keyed(extents, stored, self.algorithm).zip(verdicts).zip(blocks) {
            match (key, verdict) {
                (Some(key), Verdict::Known(_)) => self.duplicate_bytes += u64::from(key.len),
                (Some(key), Verdict::Store) => {
                    if let std::collections::hash_map::Entry::Vacant(entry) = self.known.entry(key) {
                        entry.insert(*block);
                        self.current.push(key);
                    }
                }
                (None, _) => {}
            }
        }
    }
}

/// The stored bytes of each extent, and what tells them; `None` for what is inline or a fragment.
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
