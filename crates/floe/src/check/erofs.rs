//! Checks EROFS images.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use floe_engine::Blocking;
use floe_erofs::check::{Check, DataRun};
use floe_image::{Finding, ImageSource};

use super::Run;

/// The offset of the log2 of the block size, in bytes (docs/format/erofs.md, Superblock).
const BLOCK_SIZE_LOG2_OFFSET: u64 = 1024 + 12;

/// Checks an EROFS image and returns its number of inodes.
///
/// # Errors
/// No thread could be started.
pub(super) fn check(run: &Run<'_>) -> io::Result<u64> {
    let reader = run.engine.block_reader(Blocking::Allowed);
    let check = match Check::open(reader) {
        Ok(check) => check,
        Err(error) => {
            run.report(&Finding::from(&error));
            return Ok(0);
        }
    };
    let walked = check.walk(&mut |finding| run.report(&finding), &|| run.is_cancelled());
    if run.options.data {
        let (parts, next) = (walked.parts(), AtomicUsize::new(0));
        let work = |bytes: &mut super::CheckedBytes<'_>| {
            while let Some(part) = parts.get(next.fetch_add(1, Relaxed)).filter(|_| !run.is_cancelled()) {
                let mut each = |data| match data {
                    DataRun::Plain { device, offset, len } => bytes.read(device, offset, len),
                    DataRun::Encoded(block) => bytes.decode(&block).map(drop),
                };
                check.data(&walked, part, &mut each, &mut |finding| run.report(&finding));
            }
        };
        run.on_all_jobs(work, || {})?;
    }
    Ok(walked.inode_count() as u64)
}

/// The block size that the superblock states, in bytes; 0 if it states none.
pub(super) fn block_size(source: &dyn ImageSource) -> u32 {
    let mut log2 = [0];
    match source.read_at(BLOCK_SIZE_LOG2_OFFSET, &mut log2) {
        Ok(()) => 1u32.checked_shl(log2[0].into()).unwrap_or(0),
        Err(_) => 0,
    }
}
