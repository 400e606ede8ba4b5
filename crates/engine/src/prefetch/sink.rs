//! The sink of prefetched bytes.

use floe_image::{ByteRange, Nid};

/// A cache that is closer to the readers than the block cache, and takes bytes of files ahead of demand.
///
/// It is set with [`Reader::set_sink`](crate::Reader::set_sink). Directory readahead and the rest of blocks use it. The
/// controller decides what to prefetch and how much, so a sink has no thresholds.
///
/// Prefetch fills two other places without this trait. Sequential readahead decodes into the block cache of the engine.
/// Fault-around requests stored bytes from their source with [`ImageSource::will_need`](floe_image::ImageSource::will_need),
/// and drop-behind releases them with [`ImageSource::dont_need`](floe_image::ImageSource::dont_need).
pub trait Sink: Send + Sync {
    /// Takes the bytes of a file from `offset` on, and returns how many it took, counted from the first. The bytes begin at a
    /// page boundary, and end at one or at the end of the file. May wait.
    fn push(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize;

    /// Whether the cache takes no bytes of this file, but reads them itself after [`Sink::request`].
    fn reads_by_itself(&self, nid: Nid) -> bool {
        let _ = nid;
        false
    }

    /// Whether this file consists of small files of programs, which the kernel's readahead reads whole.
    fn reads_whole_files(&self, nid: Nid) -> bool {
        let _ = nid;
        false
    }

    /// Asks the cache to read a range of a file for which [`Sink::reads_by_itself`] is true. While `cpus_are_short`, the
    /// thread that reads it should run before other programs. Does not wait.
    fn request(&self, nid: Nid, range: ByteRange, cpus_are_short: bool) {
        let _ = (nid, range, cpus_are_short);
    }

    /// Notes now and then whether CPUs are short, so that the thread is scheduled before the next request. Does not wait.
    fn follow_load(&self, cpus_are_short: bool) {
        let _ = cpus_are_short;
    }

    /// The size of its pages in bytes, the smallest unit that it keeps.
    fn page_bytes(&self) -> u64;
}
