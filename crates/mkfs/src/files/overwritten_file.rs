//! Copies a complete file into an existing one that cannot be replaced.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::{fs::FallocateFlags, io::Errno};

/// The copy size in bytes.
const COPY_LEN: usize = 1 << 20;

/// Why a file was not overwritten.
pub(crate) enum OverwriteError {
    /// It is as before.
    Untouched(io::Error),
    /// It has a part of the new content, and its head is zero.
    Incomplete(io::Error),
}

/// Copies `file` into `target`. The bytes of `head_len` from `head_offset` on are zero until everything else is stored,
/// so that an interrupted copy leaves no superblock. The space is reserved before anything is overwritten.
pub(crate) fn overwrite(target: &File, file: &File, head_offset: u64, head_len: usize) -> Result<(), OverwriteError> {
    let len = file.metadata().map_err(OverwriteError::Untouched)?.len();
    reserve(target, len).map_err(OverwriteError::Untouched)?;
    copy_all(target, file, len, head_offset, head_len).map_err(OverwriteError::Incomplete)
}

/// Reserves space for `len` bytes, on file systems that support that.
fn reserve(target: &File, len: u64) -> io::Result<()> {
    let len_before = target.metadata()?.len();
    match rustix::fs::fallocate(target, FallocateFlags::empty(), 0, len) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            target.set_len(len_before)?;
            Err(error.into())
        }
        // The writes will show whether there is room.
        _ => Ok(()),
    }
}

fn copy_all(target: &File, file: &File, len: u64, head_offset: u64, head_len: usize) -> io::Result<()> {
    target.write_all_at(&vec![0; head_len], head_offset)?;
    target.sync_data()?;
    let head_end = head_offset + head_len as u64;
    copy(target, file, 0, head_offset)?;
    copy(target, file, head_end, len)?;
    target.set_len(len)?;
    target.sync_data()?;
    copy(target, file, head_offset, head_end.min(len))?;
    target.sync_all()
}

fn copy(target: &File, file: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_LEN];
    let mut offset = start;
    while offset < end {
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(COPY_LEN);
        file.read_exact_at(&mut buffer[..len], offset)?;
        target.write_all_at(&buffer[..len], offset)?;
        offset += len as u64;
    }
    Ok(())
}
