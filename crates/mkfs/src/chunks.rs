//! Chunks: parts of files with a fixed size, each stored once.

use std::collections::HashMap;

use floe_erofs::write::Chunk;
use sha2::{Digest, Sha256};

use crate::{error::Result, image_file::ImageFile};

/// A chunk of a piece: its length, and the digest of its content unless it is all zeros.
pub(crate) struct HashedChunk {
    pub(crate) len: usize,
    pub(crate) digest: Option<[u8; 32]>,
}

/// Splits a piece that begins with a chunk into chunks.
pub(crate) fn hash_chunks(data: &[u8], chunk_len: usize) -> Vec<HashedChunk> {
    let digest = |chunk: &[u8]| {
        let is_hole = chunk.iter().all(|byte| *byte == 0);
        (!is_hole).then(|| Sha256::digest(chunk).into())
    };
    data.chunks(chunk_len).map(|chunk| HashedChunk { len: chunk.len(), digest: digest(chunk) }).collect()
}

/// Stores chunks and finds duplicates.
#[derive(Default)]
pub(crate) struct ChunkStore {
    known: HashMap<([u8; 32], usize), Chunk>,
    duplicate_bytes: u64,
}

impl ChunkStore {
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
