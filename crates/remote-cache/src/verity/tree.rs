//! A hash tree that verifies blocks of data.

use std::{collections::HashMap, io, mem};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_sync::Mutex;

use crate::{DIGEST_BYTES, Digest, TreeRoot, verity::Geometry};

/// The size of each of the two generations of verified hash blocks that are kept.
const GENERATION_BLOCKS_MAX: usize = 512;

/// Whether a hash block is requested again because the previous bytes were wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    First,
    Again,
}

/// Provides the bytes of hash blocks.
pub(crate) trait TreeBlocks {
    /// The bytes of `range`, which may be wrong. A repeated request reads from another place.
    fn tree_block(&self, range: ByteRange, attempt: Attempt) -> io::Result<Bytes>;
}

/// Why bytes could not be verified.
#[derive(Debug)]
pub(crate) enum VerifyError {
    /// The bytes are wrong.
    Wrong {
        /// The violated rule.
        rule: &'static str,
        /// The offset in the object of the first wrong block.
        offset: u64,
    },
    /// The data for verification cannot be read.
    Io(io::Error),
}

impl From<io::Error> for VerifyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A hash tree under a trusted root. A hash block is verified up to the root when it is loaded into memory, and never
/// used before.
#[derive(Debug)]
pub(crate) struct VerityTree {
    geometry: Geometry,
    root_hash: Digest,
    verified: Mutex<VerifiedBlocks>,
    rules: Rules,
}

/// The rules that wrong bytes violate.
#[derive(Clone, Copy, Debug)]
struct Rules {
    data: &'static str,
    tree: &'static str,
}

impl VerityTree {
    /// A dm-verity tree.
    pub(crate) fn new(geometry: Geometry, root_hash: Digest) -> Self {
        let rules = Rules {
            data: "a block does not have the hash in the dm-verity tree",
            tree: "a block of the dm-verity tree does not have the hash in its parent",
        };
        Self { geometry, root_hash, verified: Mutex::default(), rules }
    }

    /// The tree beside an image.
    pub(crate) fn beside(root: &TreeRoot) -> Self {
        let rules = Rules {
            data: "a piece of 16 KiB does not have the hash in the hash tree",
            tree: "a block of the hash tree does not have the hash in its parent",
        };
        Self { geometry: Geometry::beside(root.data_len), root_hash: root.root_hash, verified: Mutex::default(), rules }
    }

    /// Verifies the hash block next to the root, if the tree has hash blocks.
    pub(crate) fn verify_root(&self, blocks: &impl TreeBlocks) -> Result<(), VerifyError> {
        match self.geometry.levels.len().checked_sub(1) {
            Some(top) => self.hash_block(top, 0, blocks).map(drop),
            None => Ok(()),
        }
    }

    /// Verifies the bytes of `range`, which must consist of whole blocks.
    pub(crate) fn verify(&self, range: ByteRange, bytes: &[u8], blocks: &impl TreeBlocks) -> Result<(), VerifyError> {
        let block_log2 = self.geometry.superblock.data_block_log2;
        let mut leaf: Option<(u64, Bytes)> = None;
        let first = range.offset() >> block_log2;
        for (number, block) in (first..).zip(bytes.chunks(1 << block_log2)) {
            let expected = if self.geometry.levels.is_empty() {
                self.root_hash
            } else {
                let leaf_index = number >> self.geometry.hashes_log2();
                if leaf.as_ref().is_none_or(|(index, _)| *index != leaf_index) {
                    leaf = Some((leaf_index, self.hash_block(0, leaf_index, blocks)?));
                }
                leaf.as_ref().map_or(self.root_hash, |(_, hashes)| self.hash_in(hashes, number))
            };
            if Digest::salted(&self.geometry.superblock.salt, block) != expected {
                return Err(VerifyError::Wrong { rule: self.rules.data, offset: number << block_log2 });
            }
        }
        Ok(())
    }

    /// The parts of the tree whose hash blocks verify `range` directly.
    pub(crate) fn leaves_of(&self, range: ByteRange) -> ByteRange {
        let Some(leaves) = self.geometry.levels.first().filter(|_| !range.is_empty()) else {
            return ByteRange::new(0, 0);
        };
        let log2 = self.geometry.superblock.data_block_log2 + self.geometry.hashes_log2();
        let [first, last] = [range.offset(), range.end() - 1].map(|byte| byte >> log2);
        let hash_block_log2 = self.geometry.superblock.hash_block_log2;
        ByteRange::between(leaves.offset + (first << hash_block_log2), leaves.offset + ((last + 1) << hash_block_log2))
    }

    /// The topmost hash block; empty if there is none.
    pub(crate) fn top(&self) -> ByteRange {
        let place = self.geometry.levels.last().map(|level| level.offset);
        place.map_or(ByteRange::new(0, 0), |offset| ByteRange::new(offset, self.geometry.hash_block_bytes() as u64))
    }

    /// Whether all hash blocks that verify `range` directly are in memory.
    pub(crate) fn is_warm(&self, range: ByteRange) -> bool {
        let leaves = self.leaves_of(range);
        let mut verified = self.verified.lock();
        (leaves.offset()..leaves.end()).step_by(self.geometry.hash_block_bytes()).all(|at| verified.find(at).is_some())
    }

    /// Returns a verified hash block. The recursion is as deep as the tree has levels, at most 15.
    fn hash_block(&self, level: usize, index: u64, blocks: &impl TreeBlocks) -> Result<Bytes, VerifyError> {
        let place = self.geometry.levels[level];
        let len = self.geometry.hash_block_bytes();
        let range = ByteRange::new(place.offset + (index << self.geometry.superblock.hash_block_log2), len as u64);
        if let Some(bytes) = self.verified.lock().find(range.offset()) {
            return Ok(bytes);
        }
        let expected = if level + 1 == self.geometry.levels.len() {
            self.root_hash
        } else {
            let parent = self.hash_block(level + 1, index >> self.geometry.hashes_log2(), blocks)?;
            self.hash_in(&parent, index)
        };
        for attempt in [Attempt::First, Attempt::Again] {
            let bytes = blocks.tree_block(range, attempt)?;
            if bytes.len() == len && Digest::salted(&self.geometry.superblock.salt, &bytes) == expected {
                let mut verified = self.verified.lock();
                // A copy, so that a block does not keep the whole fetch in memory.
                verified.insert(range.offset(), Bytes::copy_from_slice(&bytes));
                return Ok(bytes);
            }
        }
        Err(VerifyError::Wrong { rule: self.rules.tree, offset: range.offset() })
    }

    /// The hash of block `number` of the level below, from the hash block that contains it.
    fn hash_in(&self, hashes: &[u8], number: u64) -> Digest {
        let place = (number & ((1 << self.geometry.hashes_log2()) - 1)) as usize;
        Digest(hashes.as_chunks::<DIGEST_BYTES>().0[place])
    }
}

/// Verified hash blocks by their offset, in two generations: the older one is dropped when the younger one is full.
#[derive(Debug, Default)]
struct VerifiedBlocks {
    young: HashMap<u64, Bytes>,
    old: HashMap<u64, Bytes>,
}

impl VerifiedBlocks {
    fn find(&mut self, offset: u64) -> Option<Bytes> {
        if let Some(bytes) = self.young.get(&offset) {
            return Some(bytes.clone());
        }
        let bytes = self.old.remove(&offset)?;
        self.insert(offset, bytes.clone());
        Some(bytes)
    }

    fn insert(&mut self, offset: u64, bytes: Bytes) {
        if self.young.len() >= GENERATION_BLOCKS_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(offset, bytes);
    }
}
