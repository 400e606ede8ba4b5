//! The check of an EROFS image.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use floe_erofs::check::{Check, DataRun};
use floe_image::{BlockReader, DecodedLen, ImageSource, StoredBlock};

use super::{Finding, Run};

/// In how many parts the blocks that were decoded are remembered, so that threads do not wait for one another.
const SHARD_COUNT: usize = 32;

/// Where the superblock has log2 of the block size, in bytes (docs/format/erofs.md, Superblock).
const BLOCK_SIZE_LOG2_OFFSET: u64 = 1024 + 12;

/// Checks an EROFS image; gives the number of its inodes.
///
/// # Errors
/// There are no threads to be had.
pub(super) fn check(run: &Run<'_>) -> io::Result<u64> {
    let reader: Arc<dyn BlockReader> = Arc::clone(&run.engine) as Arc<dyn BlockReader>;
    let check = match Check::open(reader) {
        Ok(check) => check,
        Err(error) => {
            run.report(&Finding::unopened(error));
            return Ok(0);
        }
    };
    let walked = check.walk(&mut |finding| run.report(&finding.into()));
    if run.options.data {
        let (parts, next, decoded) = (walked.parts(), AtomicUsize::new(0), DecodedBlocks::default());
        let work = |bytes: &mut super::CheckedBytes<'_>| {
            while let Some(part) = parts.get(next.fetch_add(1, Relaxed)).filter(|_| !run.is_cancelled()) {
                let mut each = |data| match data {
                    DataRun::Plain { device, offset, len } => bytes.read(device, offset, len),
                    DataRun::Encoded(block) if decoded.take(&block) => bytes.decode(&block).map(drop),
                    DataRun::Encoded(_) => Ok(()),
                };
                check.data(&walked, part, &mut each, &mut |finding| run.report(&finding.into()));
            }
        };
        run.on_all_jobs(work, || {})?;
    }
    Ok(walked.inode_count() as u64)
}

/// The block size that the superblock of an image says; 0 where it says none.
pub(super) fn block_size(source: &dyn ImageSource) -> u32 {
    let mut log2 = [0];
    match source.read_at(BLOCK_SIZE_LOG2_OFFSET, &mut log2) {
        Ok(()) => 1u32.checked_shl(log2[0].into()).unwrap_or(0),
        Err(_) => 0,
    }
}

/// Which blocks were decoded, and how many bytes of each: several files may share one.
#[derive(Default)]
struct DecodedBlocks {
    shards: [Mutex<HashMap<StoredBlock, u32>>; SHARD_COUNT],
    hasher: RandomState,
}

impl DecodedBlocks {
    /// Whether more of this block is to be decoded than was before; that is then taken as done.
    fn take(&self, block: &StoredBlock) -> bool {
        let len = block.decoded_len.bytes();
        // A block that decodes to a length does not decode to another one. Part of what decoded does decode.
        let known_len = match block.decoded_len {
            DecodedLen::Exact(len) => DecodedLen::Exact(len),
            DecodedLen::AtLeast(_) => DecodedLen::AtLeast(0),
            DecodedLen::AtMost(_) => DecodedLen::AtMost(0),
        };
        let key = StoredBlock { decoded_len: known_len, ..*block };
        let index = self.hasher.hash_one(key) as usize % SHARD_COUNT;
        let mut shard = self.shards[index].lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.entry(key).or_insert(0);
        let is_new = *known < len;
        *known = (*known).max(len);
        is_new
    }
}
