//! Notes of this process about chunks: which of them it has proven, and when it last marked them as used.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::layout::ChunkIndex;

/// How many chunks one page of notes covers.
const PAGE_CHUNKS: u64 = 256;

/// Notes about each chunk of an object. They take memory only for the parts of the object that are read.
#[derive(Debug)]
pub(crate) struct ProvenChunks {
    pages: Box<[OnceLock<Page>]>,
}

type Page = Box<[Note; PAGE_CHUNKS as usize]>;

#[derive(Debug, Default)]
struct Note {
    /// The stamp of the map entry under which the chunk was proven, plus one; 0 if it was not proven.
    stamp: AtomicU64,
    /// When the chunk was last marked as used, in nanoseconds.
    marked_ns: AtomicU64,
}

impl ProvenChunks {
    /// Notes about an object with this many chunks, none of which is proven.
    pub(crate) fn new(chunks: u64) -> Self {
        Self { pages: (0..chunks.div_ceil(PAGE_CHUNKS)).map(|_| OnceLock::new()).collect() }
    }

    /// Whether the chunk was proven under an entry with this stamp.
    pub(crate) fn is_proven(&self, index: ChunkIndex, stamp_ns: u64) -> bool {
        self.known(index).is_some_and(|note| note.stamp.load(Ordering::Acquire) == stamp_ns.wrapping_add(1))
    }

    /// Notes that the chunk was proven under an entry with this stamp.
    pub(crate) fn prove(&self, index: ChunkIndex, stamp_ns: u64) {
        if let Some(note) = self.note(index) {
            note.stamp.store(stamp_ns.wrapping_add(1), Ordering::Release);
        }
    }

    /// Whether the chunk was not marked within `interval_ns`. If so, it now counts as marked.
    pub(crate) fn wants_mark(&self, index: ChunkIndex, now_ns: u64, interval_ns: u64) -> bool {
        let Some(note) = self.note(index) else { return false };
        let marked = note.marked_ns.load(Ordering::Relaxed);
        let is_due = marked == 0 || now_ns.saturating_sub(marked) >= interval_ns;
        is_due && note.marked_ns.compare_exchange(marked, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn known(&self, index: ChunkIndex) -> Option<&Note> {
        let page = self.pages.get(usize::try_from(index / PAGE_CHUNKS).ok()?)?;
        page.get()?.get((index % PAGE_CHUNKS) as usize)
    }

    fn note(&self, index: ChunkIndex) -> Option<&Note> {
        let page = self.pages.get(usize::try_from(index / PAGE_CHUNKS).ok()?)?;
        page.get_or_init(|| Box::new(std::array::from_fn(|_| Note::default()))).get((index % PAGE_CHUNKS) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_of_one_stamp() {
        let proven = ProvenChunks::new(300);
        for index in [0, 255, 256, 299] {
            assert!(!proven.is_proven(index, 0));
            proven.prove(index, 0);
            assert!(proven.is_proven(index, 0) && !proven.is_proven(index, 1));
            proven.prove(index, 1);
            assert!(proven.is_proven(index, 1) && !proven.is_proven(index, 0));
        }
        assert!(!proven.is_proven(1, 0) && !proven.is_proven(1_000_000, 0));
        assert!(proven.wants_mark(7, 100, 50) && !proven.wants_mark(7, 149, 50) && proven.wants_mark(7, 150, 50));
    }
}
