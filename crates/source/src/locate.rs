//! Finding a file system in a file that holds something else too.

use std::io;

use floe_image::ImageSource;

use crate::{
    elf,
    magic::{self, HEAD_LEN, ImageFormat},
    sif,
};

/// A search looks at each multiple of this, in bytes.
pub const SCAN_ALIGNMENT: u64 = 512;
/// A search goes no farther than this, in bytes.
pub const SCAN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How much is read in one step of a search, in bytes; a multiple of [`SCAN_ALIGNMENT`].
const SCAN_STEP_LEN: usize = 1024 * 1024;

/// Where a file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Which it is.
    pub format: ImageFormat,
    /// Where it begins, in bytes.
    pub offset: u64,
}

/// Finds the file system in a source: at its beginning; in a SIF container, as its descriptors say; in a program, as an
/// AppImage is one, behind its end; else the first at a multiple of [`SCAN_ALIGNMENT`] within [`SCAN_BYTES_MAX`].
///
/// At the beginning the magic number is enough. Elsewhere it may stand by chance, so the superblock must be sound too.
///
/// # Errors
/// The source cannot be read.
pub fn locate(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    if let Some(format) = ImageFormat::of(source)? {
        return Ok(Some(Location { format, offset: 0 }));
    }
    for offset in sif::partitions(source)?.into_iter().chain(elf::end(source)?) {
        if let Some(format) = surely_at(source, offset)? {
            return Ok(Some(Location { format, offset }));
        }
    }
    scan(source)
}

fn surely_at(source: &dyn ImageSource, offset: u64) -> io::Result<Option<ImageFormat>> {
    if offset >= source.len() {
        return Ok(None);
    }
    let head = magic::read_head(source, offset)?;
    Ok(ImageFormat::surely_of(&head, source.len() - offset))
}

fn scan(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    let end = source.len().min(SCAN_BYTES_MAX);
    // Each step reads as much more as a superblock at its end takes.
    let mut bytes = vec![0; SCAN_STEP_LEN + HEAD_LEN];
    let mut offset = 0;
    while offset < end {
        let rest = source.len() - offset;
        let len = bytes.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        source.read_at(offset, &mut bytes[..len])?;
        let steps = (offset..end).step_by(SCAN_ALIGNMENT as usize).take(SCAN_STEP_LEN / SCAN_ALIGNMENT as usize);
        for at in steps {
            let head = bytes[..len].get((at - offset) as usize..).unwrap_or_default();
            if let Some(format) = ImageFormat::surely_of(head, source.len() - at) {
                return Ok(Some(Location { format, offset: at }));
            }
        }
        offset += SCAN_STEP_LEN as u64;
    }
    Ok(None)
}
