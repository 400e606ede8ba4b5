//! The hash tree that is published beside an image: one SHA-256 for each 16 KiB, and hashes of these up to a root.

use sha2::{Digest as _, Sha256};

use crate::{CHUNK_BYTES, DIGEST_BYTES, Digest, TreeRoot, verity::Geometry};

/// The size of a hash block in bytes: the hashes of 128 blocks of the level below.
const HASH_BLOCK_BYTES: usize = 4096;

impl TreeRoot {
    /// The length of the image and its tree in bytes.
    pub fn object_len(&self) -> u64 {
        Geometry::beside(self.data_len).end
    }
}

/// A hash tree, which is published as an object of its own. Its levels follow each other from the topmost hash block down. A
/// hash block has 4 KiB with the SHA-256 of up to 128 blocks of the level below, padded with zeros; below the lowest level are
/// the chunks of the image, of [`CHUNK_BYTES`]. The last chunk may be shorter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HashTree {
    root: TreeRoot,
    bytes: Vec<u8>,
}

impl HashTree {
    /// The media type of a tree in a registry.
    pub const MEDIA_TYPE: &str = "application/vnd.floe.hash-tree.v1";

    /// The root.
    pub const fn root(&self) -> TreeRoot {
        self.root
    }

    /// The published form.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Computes a hash tree from the bytes of an image in their order.
#[derive(Clone, Debug, Default)]
pub struct HashTreeBuilder {
    hash: Sha256,
    data_len: u64,
    /// The digests of whole chunks.
    chunks: Vec<u8>,
}

impl HashTreeBuilder {
    /// Adds the next bytes of the image.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.data_len % CHUNK_BYTES;
            let (now, rest) = bytes.split_at(usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len())));
            self.hash.update(now);
            self.data_len += now.len() as u64;
            bytes = rest;
            if self.data_len.is_multiple_of(CHUNK_BYTES) {
                self.chunks.extend_from_slice(&self.hash.finalize_reset());
            }
        }
    }

    /// The tree; `None` for an image of at most one chunk, which needs none.
    pub fn finish(mut self) -> Option<HashTree> {
        if !self.data_len.is_multiple_of(CHUNK_BYTES) {
            self.chunks.extend_from_slice(&self.hash.finalize_reset());
        }
        let mut levels = vec![self.chunks];
        while let Some(below) = levels.last_mut()
            && below.len() > DIGEST_BYTES
        {
            below.resize(below.len().next_multiple_of(HASH_BLOCK_BYTES), 0);
            let level = below.chunks(HASH_BLOCK_BYTES).flat_map(|block| Digest::of(block).0).collect();
            levels.push(level);
        }
        let root_hash = Digest(levels.pop()?.try_into().ok()?);
        let bytes: Vec<u8> = levels.into_iter().rev().flatten().collect();
        (!bytes.is_empty()).then_some(HashTree { root: TreeRoot { root_hash, data_len: self.data_len }, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_have_the_shape_that_readers_expect() {
        for (len, blocks) in [
            (0, 0),
            (1, 0),
            (CHUNK_BYTES, 0),
            (CHUNK_BYTES + 1, 1),
            (128 * CHUNK_BYTES, 1),
            (128 * CHUNK_BYTES + 1, 3),
            (300 * CHUNK_BYTES + 77, 4),
        ] {
            let image = floe_testkit::Random::new(len).noise(usize::try_from(len).expect("small"));
            let mut builder = HashTreeBuilder::default();
            image.chunks(100_003).for_each(|piece| builder.update(piece));
            let tree = builder.finish();
            assert_eq!(tree.as_ref().map_or(0, |tree| tree.bytes().len()), blocks * HASH_BLOCK_BYTES, "{len}");
            let Some(tree) = tree else { continue };
            assert_eq!(tree.root().object_len(), len + tree.bytes().len() as u64, "{len}");
            assert_eq!(Digest::of(&tree.bytes()[..HASH_BLOCK_BYTES]), tree.root().root_hash);
            let leaves = image.len().div_ceil(128 * CHUNK_BYTES as usize) * HASH_BLOCK_BYTES;
            let first = &tree.bytes()[tree.bytes().len() - leaves..][..DIGEST_BYTES];
            assert_eq!(first, Digest::of(&image[..CHUNK_BYTES as usize]).0);
        }
    }
}
