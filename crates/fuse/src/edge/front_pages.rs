//! The page cache of a front.

use std::sync::{Arc, OnceLock};

use floe_engine::Sink;
use floe_image::{ByteRange, Nid};

use crate::{
    edge::kernel_pages::KernelPages,
    mounting::front_transfer::{FrontRange, FrontTransfer},
};

/// The image behind a front: an EROFS image whose bytes Floe makes up.
pub trait FrontImage: Send + Sync {
    /// The files of the front whose data are in a range of the image; `None` where the range is no file data, or cannot be
    /// told.
    fn files_in(&self, range: ByteRange) -> Option<Vec<FrontRange>>;

    /// The parts of a range of the image that are data of files, as far as this can be told without waiting.
    fn file_data_in(&self, range: ByteRange) -> Vec<ByteRange>;

    /// The inodes of the original whose data are in a range of the image, with the ranges of their data; empty where the
    /// range is no file data, or cannot be told. Does not wait.
    fn originals_in(&self, range: ByteRange) -> Vec<(Nid, ByteRange)>;

    /// Notes that the kernel reads a range of the image; returns the ranges of metadata that it is likely to read next. The
    /// iterator may wait; this call does not.
    fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>>;
}

/// The page cache of the kernel's EROFS in front of a hidden image.
///
/// The kernel reads the image through the image's own page cache, where metadata is stored. File data is not: a store waits for
/// pages that are being read, and a process that is killed meanwhile never ends. The front is asked to read it instead.
pub(crate) struct FrontPages {
    pub(crate) hidden: KernelPages,
    pub(crate) image: Arc<dyn FrontImage>,
    /// Set when the front is mounted.
    pub(crate) transfer: Arc<OnceLock<FrontTransfer>>,
}

impl Sink for FrontPages {
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        self.hidden.store(nid, offset, bytes)
    }

    fn read_ahead(&self, _nid: Nid, range: ByteRange) -> Option<u64> {
        let ranges = self.image.files_in(range)?;
        let is_sent = self.transfer.get().is_some_and(|transfer| transfer.ask(&ranges));
        Some(if is_sent { ranges.iter().map(|range| range.range.len()).sum() } else { 0 })
    }

    fn page_bytes(&self) -> u64 {
        self.hidden.page_bytes()
    }
}
