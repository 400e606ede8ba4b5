//! What is rendered, as a source that extents can name.

use std::{io, sync::Weak};

use floe_image::{Error, ImageSource};

use crate::{geometry::BLOCK_BYTES, view::View};

/// Both views of an image.
pub(crate) struct Views {
    /// It waits for the original's metadata.
    pub(crate) waiting: View,
    /// It does not.
    pub(crate) at_hand: View,
}

/// What is rendered, at its addresses in the virtual image. File data is not in it.
///
/// The reader of the original holds this source, and the views hold the reader.
pub(crate) struct RenderedSource {
    pub(crate) views: Weak<Views>,
    pub(crate) len: u64,
}

impl RenderedSource {
    fn read(&self, offset: u64, output: &mut [u8], view: impl Fn(&Views) -> &View) -> Result<(), Error> {
        let views = self.views.upgrade().ok_or(Error::Cancelled)?;
        let (mut position, mut rest) = (offset, output);
        while !rest.is_empty() {
            let block = view(&views).block(position / BLOCK_BYTES)?;
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

    fn read_at_hand(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        match self.read(offset, output, |views| &views.at_hand) {
            Err(Error::WouldBlock) => Ok(false),
            result => result.map(|()| true).map_err(io::Error::other),
        }
    }
}
