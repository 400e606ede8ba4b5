//! The rendered parts of the virtual image as a source that extents refer to.

use std::{
    io,
    sync::{
        Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::{Error, ImageSource};

use crate::{geometry::BLOCK_BYTES, view::View};

/// The blocking and the non-blocking view of an image.
pub(crate) struct Views {
    /// May wait for the original's metadata.
    pub(crate) waiting: View,
    /// Fails with [`Error::WouldBlock`] instead of waiting.
    pub(crate) non_blocking: View,
    /// The number of blocks that were rendered for readers.
    pub(crate) rendered_count: AtomicU64,
}

/// The rendered parts of the virtual image, at their addresses. File data is not among them.
///
/// The reader of the original owns this source, and the views own the reader. So the source refers to the views weakly.
pub(crate) struct RenderedSource {
    pub(crate) views: Weak<Views>,
    /// The length of the virtual image in bytes.
    pub(crate) len: u64,
}

impl RenderedSource {
    fn read(&self, offset: u64, output: &mut [u8], view: impl Fn(&Views) -> &View) -> Result<(), Error> {
        let views = self.views.upgrade().ok_or(Error::Cancelled)?;
        let (mut position, mut rest) = (offset, output);
        while !rest.is_empty() {
            let block = view(&views).block(position / BLOCK_BYTES)?;
            views.rendered_count.fetch_add(1, Relaxed);
            let bytes = block.get((position % BLOCK_BYTES) as usize..).unwrap_or_default();
            let (part, after) = rest.split_at_mut(rest.len().min(bytes.len()));
            part.copy_from_slice(bytes.get(..part.len()).unwrap_or_default());
            position += part.len() as u64;
            rest = after;
        }
        Ok(())
    }
}

impl ImageSource for RenderedSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.read(offset, output, |views| &views.waiting).map_err(io::Error::other)
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        match self.read(offset, output, |views| &views.non_blocking) {
            Err(Error::WouldBlock) => Ok(false),
            result => result.map(|()| true).map_err(io::Error::other),
        }
    }
}
