//! Images as sources of `floe-mkfs`.

use floe_image::{FileSystem, Nid};
use floe_mkfs::ImageReader;

use crate::Image;

impl ImageReader for Image {
    fn file_system(&self) -> &dyn FileSystem {
        Self::file_system(self).as_ref()
    }

    fn read_at(&self, nid: Nid, offset: u64, output: &mut [u8]) -> floe_image::Result<usize> {
        Self::read_at(self, nid, offset, output)
    }
}
