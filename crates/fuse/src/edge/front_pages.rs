//! The page cache of a front.

use std::sync::{Arc, OnceLock};

use floe_engine::Sink;
use floe_image::{ByteRange, Nid};

use crate::{
    edge::kernel_pages::KernelPages,
    mounting::front_transfer::{FrontRange, FrontTransfer},
};

/// The image behind a front: a virtual EROFS image, whose bytes Floe renders.
///
/// It consists of two files: the image and the large file. The large file is an extra device of the EROFS image, and
/// contains the data of the original's large files. Both files share one range of addresses; ranges are in these
/// addresses, in bytes.
pub trait FrontImage: Send + Sync {
    /// The large file. The kernel reads it past its page cache, so that its bytes have no second copy.
    fn large_file(&self) -> Nid;

    /// The address of a byte of one of the files.
    fn address(&self, nid: Nid, offset: u64) -> u64;

    /// The files of the front with data in a range of the image; `None` if the range is not file data or this is
    /// unknown.
    fn files_in(&self, range: ByteRange) -> Option<Vec<FrontRange>>;

    /// The parts of a range of the image that are known to be file data. Does not wait.
    fn file_data_in(&self, range: ByteRange) -> Vec<ByteRange>;

    /// The inodes of the original with data in a range of the image, each with the range of that data; empty if the
    /// range is not file data or this is unknown. Does not wait.
    fn originals_in(&self, range: ByteRange) -> Vec<(Nid, ByteRange)>;

    /// Notes that the kernel reads a range of the image, and returns the ranges of metadata that it is likely to read
    /// next. The iterator may wait; the call itself does not.
    fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>>;
}

/// The page cache of the kernel's EROFS in front of a hidden image.
///
/// The kernel's EROFS reads the hidden image through the page cache of that image, and copies file data into the pages
/// of its own files. Prefetch stores bytes in the page cache of the hidden image, and then asks the front to copy them
/// ahead of its readers.
pub(crate) struct FrontPages {
    pub(crate) hidden: KernelPages,
    pub(crate) image: Arc<dyn FrontImage>,
    /// Set when the front is mounted.
    pub(crate) transfer: Arc<OnceLock<FrontTransfer>>,
}

impl Sink for FrontPages {
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        if self.reads_by_itself(nid) {
            return 0;
        }
        let Some(ranges) = self.image.files_in(ByteRange::new(offset, bytes.len() as u64)) else {
            return self.hidden.store(nid, offset, bytes);
        };
        let Some(transfer) = self.transfer.get() else { return 0 };
        let len = self.hidden.store(nid, offset, bytes);
        if len > 0 {
            transfer.ask(&ranges);
        }
        len
    }

    fn reads_by_itself(&self, nid: Nid) -> bool {
        nid == self.image.large_file()
    }

    fn request(&self, nid: Nid, range: ByteRange, cpus_are_short: bool) {
        let range = ByteRange::new(self.image.address(nid, range.offset()), range.len());
        if let (Some(transfer), Some(ranges)) = (self.transfer.get(), self.image.files_in(range)) {
            transfer.request(&ranges, cpus_are_short);
        }
    }

    fn page_bytes(&self) -> u64 {
        self.hidden.page_bytes()
    }
}
