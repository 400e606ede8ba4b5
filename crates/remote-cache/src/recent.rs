//! Keeps chunks that could not be stored in memory for a moment, because readers often return for the rest of a chunk.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;

use crate::layout::ChunkIndex;

/// The number of kept chunks: 8 MiB.
const CHUNKS_MAX: usize = 32;

/// The last chunks that could not be stored.
#[derive(Debug, Default)]
pub(crate) struct RecentChunks {
    chunks: Mutex<VecDeque<(ChunkIndex, Bytes)>>,
}

impl RecentChunks {
    pub(crate) fn find(&self, index: ChunkIndex) -> Option<Bytes> {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.iter().find(|(kept, _)| *kept == index).map(|(_, bytes)| bytes.clone())
    }

    /// Stores a copy, so that one chunk does not keep a whole request in memory.
    pub(crate) fn keep(&self, index: ChunkIndex, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.retain(|(kept, _)| *kept != index);
        if chunks.len() >= CHUNKS_MAX {
            chunks.pop_front();
        }
        chunks.push_back((index, bytes));
    }

    pub(crate) fn forget(&self, index: ChunkIndex) {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).retain(|(kept, _)| *kept != index);
    }
}
