//! Verifies bytes against a trusted root.

use floe_image::ByteRange;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    Digest, TableRoot,
    counters::Counters,
    entry::MapEntry,
    layout::ChunkIndex,
    verity::{TreeBlocks, VerifyError, VerityTree},
};

/// The root against which the chunks of an object are verified.
#[derive(Debug)]
pub(crate) enum Verifier {
    Verity(Box<VerityTree>),
    Table(TableRoot),
    /// No root: the first bytes that arrive are trusted, and later ones must match their digest.
    FirstSeen,
}

impl Verifier {
    /// Verifies data chunks. Returns for each the digest for its map entry, if the entry needs one.
    pub(crate) fn verify(
        &self,
        chunks: &[(ChunkIndex, ByteRange, &[u8])],
        blocks: &impl TreeBlocks,
        counters: &Counters,
    ) -> Vec<Result<Option<Digest>, VerifyError>> {
        let started_ns = thread_cpu_ns();
        let outcomes =
            chunks.iter().map(|(index, range, bytes)| self.verify_one(*index, *range, bytes, blocks)).collect();
        counters.hashed_bytes.add(chunks.iter().map(|(_, _, bytes)| bytes.len() as u64).sum());
        counters.hashed_ns.add(thread_cpu_ns().saturating_sub(started_ns));
        outcomes
    }

    fn verify_one(
        &self,
        index: ChunkIndex,
        range: ByteRange,
        bytes: &[u8],
        blocks: &impl TreeBlocks,
    ) -> Result<Option<Digest>, VerifyError> {
        if bytes.len() as u64 != range.len() {
            return Err(VerifyError::Wrong { rule: "a chunk has another length", offset: range.offset() });
        }
        match self {
            Self::Verity(tree) => tree.verify(range, bytes, blocks).map(|()| None),
            Self::Table(root) => match root.table()?.piece(index) {
                Some(digest) if Digest::of(bytes) == *digest => Ok(None),
                _ => {
                    let rule = "a piece of 256 KiB does not have the digest in the digest table";
                    Err(VerifyError::Wrong { rule, offset: range.offset() })
                }
            },
            Self::FirstSeen => Ok(Some(Digest::of(bytes))),
        }
    }

    /// Verifies a chunk that was stored before the current boot.
    pub(crate) fn verify_again(
        &self,
        (index, range): (ChunkIndex, ByteRange),
        bytes: &[u8],
        entry: &MapEntry,
        blocks: &impl TreeBlocks,
        counters: &Counters,
    ) -> Result<(), VerifyError> {
        match self.verify(&[(index, range, bytes)], blocks, counters).pop().transpose()?.flatten() {
            Some(digest) if digest != entry.digest => {
                let rule = "a cached chunk does not have the digest that it had when it was fetched";
                Err(VerifyError::Wrong { rule, offset: range.offset() })
            }
            _ => Ok(()),
        }
    }
}

/// The CPU time of this thread in nanoseconds, which excludes waits for hash blocks.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
