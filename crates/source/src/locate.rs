//! Finds a file system inside a file that has other content too.

use std::io;

use floe_image::ImageSource;

use crate::{
    elf,
    magic::{self, HEAD_LEN, ImageFormat},
    sif,
};

/// A search examines each multiple of this offset, in bytes.
pub const SCAN_ALIGNMENT: u64 = 512;
/// A search ends at this offset, in bytes.
pub const SCAN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The number of bytes that one step of a search reads; a multiple of [`SCAN_ALIGNMENT`].
const SCAN_STEP_LEN: usize = 1024 * 1024;

/// The location of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Its format.
    pub format: ImageFormat,
    /// Its offset in bytes.
    pub offset: u64,
}

/// Finds the file system in a source: at its beginning; in a SIF container, by its descriptors; in an ELF program such
/// as an AppImage, after the program; otherwise the first one at a multiple of [`SCAN_ALIGNMENT`] within
/// [`SCAN_BYTES_MAX`].
///
/// At the beginning the magic number suffices. Elsewhere it may occur by chance, so the superblock must be valid too.
///
/// # Errors
/// The source cannot be read.
pub fn locate(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    if let Some(format) = ImageFormat::of(source)? {
        return Ok(Some(Location { format, offset: 0 }));
    }
    for offset in sif::partitions(source)?.into_iter().chain(elf::end(source)?) {
        if let Some(format) = valid_superblock_at(source, offset)? {
            return Ok(Some(Location { format, offset }));
        }
    }
    scan(source)
}

fn valid_superblock_at(source: &dyn ImageSource, offset: u64) -> io::Result<Option<ImageFormat>> {
    if offset >= source.len() {
        return Ok(None);
    }
    let head = magic::read_head(source, offset)?;
    Ok(ImageFormat::of_valid_superblock(&head, source.len() - offset))
}

fn scan(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    let end = source.len().min(SCAN_BYTES_MAX);
    // Steps overlap by the length of a superblock, so that one at the end of a step is complete.
    let mut bytes = vec![0; SCAN_STEP_LEN + HEAD_LEN];
    let mut offset = 0;
    while offset < end {
        let rest = source.len() - offset;
        let len = bytes.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        source.read_at(offset, &mut bytes[..len])?;
        let steps = (offset..end).step_by(SCAN_ALIGNMENT as usize).take(SCAN_STEP_LEN / SCAN_ALIGNMENT as usize);
        for at in steps {
            let head = bytes[..len].get((at - offset) as usize..).unwrap_or_default();
            if let Some(format) = ImageFormat::of_valid_superblock(head, source.len() - at) {
                return Ok(Some(Location { format, offset: at }));
            }
        }
        offset += SCAN_STEP_LEN as u64;
    }
    Ok(None)
}
