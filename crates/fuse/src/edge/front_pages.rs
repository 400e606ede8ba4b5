//! The page cache of a front.

use std::sync::{Arc, OnceLock};

use floe_engine::Sink;
use floe_image::{ByteRange, Nid};

use crate::{
    edge::kernel_pages::KernelPages,
    mounting::front_readahead::{FrontRange, FrontReadahead},
};

/// The image behind a front: an EROFS image whose bytes Floe makes up.
pub trait FrontImage: Send + Sync {
    /// The files of the front whose data are in a range of the image; `None` where the range is no file data, or cannot be
    /// told.
    fn files_in(&self, range: ByteRange) -> Option<Vec<FrontRange>>;

    /// The inodes of the original whose data are in a range of the image, with the ranges of their data; empty where the
    /// range is no file data, or cannot be told. Does not wait.
    fn originals_in(&self, range: ByteRange) -> Vec<(Nid, ByteRange)>;

    /// Notes that the kernel reads a range of the image; returns the ranges of metadata that it is likely to read next. The
    /// iterator may wait; this call does not.
    fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>>;
}

/// The page cache of the kernel's EROFS in front of a hidden image.
///
/// File data is read past the hidden image's page cache, so prefetch has the kernel read it into the front's own
/// ([`Sink::read_ahead`]). Metadata is read through the hidden image's page cache, and is stored there.
pub(crate) struct FrontPages {
    pub(crate) hidden: KernelPages,
    pub(crate) image: Arc<dyn FrontImage>,
    /// Set as soon as the front is mounted, if files can be read ahead at all.
    pub(crate) readahead: Arc<OnceLock<FrontReadahead>>,
}

impl Sink for FrontPages {
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        self.hidden.store(nid, offset, bytes)
    }

    fn read_ahead(&self, _nid: Nid, range: ByteRange) -> Option<u64> {
        // Kernels on which files cannot be read ahead also read through the hidden image's page cache: the bytes go there.
        let readahead = self.readahead.get()?;
        Some(readahead.ask(&self.image.files_in(range)?))
    }

    fn page_bytes(&self) -> u64 {
        self.hidden.page_bytes()
    }
}
