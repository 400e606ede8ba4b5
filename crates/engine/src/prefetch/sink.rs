//! The sink of prefetched bytes.

use floe_image::Nid;

/// A cache nearer to the readers than the block cache, which takes bytes of files that nobody asked for yet.
///
/// It is set with [`Reader::set_page_cache`](crate::Reader::set_page_cache). Directory readahead and the rest of blocks go there;
/// the controller decides what and how much, so a sink has no thresholds.
///
/// The other two places that prefetch fills are not behind this trait. Sequential readahead decodes into the block cache,
/// which belongs to the engine. Stored bytes belong to their source: fault-around asks for them with
/// [`ImageSource::will_need`](floe_image::ImageSource::will_need), and drop-behind lets them go with
/// [`ImageSource::dont_need`](floe_image::ImageSource::dont_need).
pub trait Sink: Send + Sync {
    /// Takes the bytes of a file from `offset` on, which begin at a page, and end at one or where the file does; gives how
    /// many it took, from the first on. May wait.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize;

    /// The size of its pages in bytes: it keeps nothing smaller.
    fn page_bytes(&self) -> u64;
}
