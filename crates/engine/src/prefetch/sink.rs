//! The sink of prefetched bytes.

use floe_image::{ByteRange, Nid};

/// A cache that is closer to the readers than the block cache, and takes bytes of files ahead of demand.
///
/// Most sinks take bytes ([`Sink::store`]). One whose reads come back to the engine reads them itself ([`Sink::read_ahead`]); the
/// decoded bytes wait in the block cache. It is set with [`Reader::set_page_cache`](crate::Reader::set_page_cache). Directory readahead and the rest of blocks use it. The
/// controller decides what to prefetch and how much, so a sink has no thresholds.
///
/// Prefetch fills two other places without this trait. Sequential readahead decodes into the block cache of the engine.
/// Fault-around requests stored bytes from their source with [`ImageSource::will_need`](floe_image::ImageSource::will_need),
/// and drop-behind releases them with [`ImageSource::dont_need`](floe_image::ImageSource::dont_need).
pub trait Sink: Send + Sync {
    /// Stores the bytes of a file from `offset` on, and returns how many it took, counted from the first. The bytes begin at a
    /// page boundary, and end at one or at the end of the file. May wait.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize;

    /// Requests that the sink read a range of a file by itself, and returns the number of bytes requested. Returns `None` if
    /// these bytes must be stored with [`Sink::store`] instead. May wait.
    fn read_ahead(&self, nid: Nid, range: ByteRange) -> Option<u64> {
        let _ = (nid, range);
        None
    }

    /// The size of its pages in bytes, the smallest unit that it keeps.
    fn page_bytes(&self) -> u64;
}
