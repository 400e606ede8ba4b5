//! The sink of prefetched bytes.

use floe_image::Nid;

/// A cache nearer to the readers than the engine's own, which takes bytes that nobody asked for yet.
pub trait PageCache: Send + Sync {
    /// Takes the bytes of a file from `offset` on, which begin at a page, and end at one or where the file does; gives how
    /// many it took, from the first on. May wait.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize;

    /// The size of its pages in bytes: it keeps nothing smaller.
    fn page_bytes(&self) -> u64;
}
