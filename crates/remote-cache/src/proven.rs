//! Notes of this process: which chunks it has proven, and when it last marked sections as used.

use std::sync::atomic::Ordering;

use crate::{
    layout::{ChunkIndex, ChunkLayout, SectionIndex},
    notes::Notes,
};

/// Notes about an object. They take memory only for the parts of the object that are read.
#[derive(Debug)]
pub(crate) struct ProvenChunks {
    /// By chunk: the stamp of the map entry under which the chunk was proven, plus one; 0 if it was not proven.
    stamps: Notes,
    /// By section: when it was last marked as used, in nanoseconds.
    marked_ns: Notes,
}

impl ProvenChunks {
    /// Notes about an object with these chunks, none of which is proven.
    pub(crate) fn new(layout: ChunkLayout) -> Self {
        Self { stamps: Notes::new(layout.chunks()), marked_ns: Notes::new(layout.sections()) }
    }

    /// Whether the chunk was proven under an entry with this stamp.
    pub(crate) fn is_proven(&self, index: ChunkIndex, stamp_ns: u64) -> bool {
        self.stamps.known(index).is_some_and(|note| note.load(Ordering::Acquire) == stamp_ns.wrapping_add(1))
    }

    /// Notes that the chunk was proven under an entry with this stamp.
    pub(crate) fn prove(&self, index: ChunkIndex, stamp_ns: u64) {
        if let Some(note) = self.stamps.note(index) {
            note.store(stamp_ns.wrapping_add(1), Ordering::Release);
        }
    }

    /// Whether the section was not marked within `interval_ns`. If so, it now counts as marked.
    pub(crate) fn wants_mark(&self, section: SectionIndex, now_ns: u64, interval_ns: u64) -> bool {
        let Some(note) = self.marked_ns.note(section) else { return false };
        let marked = note.load(Ordering::Relaxed);
        let is_due = marked == 0 || now_ns.saturating_sub(marked) >= interval_ns;
        is_due && note.compare_exchange(marked, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CHUNK_BYTES, SECTION_BYTES};

    #[test]
    fn proof_is_of_one_stamp() {
        let len = 300 * CHUNK_BYTES;
        let proven = ProvenChunks::new(ChunkLayout::new(len, len, CHUNK_BYTES));
        for index in [0, 255, 256, 299] {
            assert!(!proven.is_proven(index, 0));
            proven.prove(index, 0);
            assert!(proven.is_proven(index, 0) && !proven.is_proven(index, 1));
            proven.prove(index, 1);
            assert!(proven.is_proven(index, 1) && !proven.is_proven(index, 0));
        }
        assert!(!proven.is_proven(1, 0) && !proven.is_proven(1_000_000, 0));
        let last = len.div_ceil(SECTION_BYTES) - 1;
        assert!(
            proven.wants_mark(last, 100, 50) && !proven.wants_mark(last, 149, 50) && proven.wants_mark(last, 150, 50)
        );
    }
}
