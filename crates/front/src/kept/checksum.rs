//! The checksum of a kept image.

use std::{fs::File, io, os::unix::fs::FileExt};

use xxhash_rust::xxh64::Xxh64;

use super::header::{HEADER_BYTES, HEADER_START};

/// The number of bytes that are read at a time. The first part has the whole header.
const STEP_BYTES: u64 = 1 << 20;

/// The checksum of the first `len` bytes of a file, with zeros in the place of the header.
///
/// # Errors
/// They cannot be read.
pub(super) fn checksum(file: &File, len: u64) -> io::Result<u64> {
    let mut hash = Xxh64::new(0);
    let mut bytes = vec![0; STEP_BYTES.min(len) as usize];
    let mut position = 0;
    while position < len {
        let part = bytes.get_mut(..(len - position).min(STEP_BYTES) as usize).unwrap_or_default();
        file.read_exact_at(part, position)?;
        if position == 0 {
            part.iter_mut().skip(HEADER_START as usize).take(HEADER_BYTES).for_each(|byte| *byte = 0);
        }
        hash.update(part);
        position += part.len() as u64;
    }
    Ok(hash.digest())
}
