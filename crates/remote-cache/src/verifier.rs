//! Whether bytes are those that a trusted root says.

use floe_image::ByteRange;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    Digest, MapEntry, TableRoot,
    counters::Counters,
    layout::ChunkIndex,
    verity::{TreeBlocks, VerifyError, VerityTree},
};

/// What the chunks of an object are held against.
#[derive(Debug)]
pub(crate) enum Verifier {
    Verity(Box<VerityTree>),
    Table(TableRoot),
    /// Nothing: the first bytes that come are taken to be right, and later ones are held against their digest.
    FirstSeen,
}

impl Verifier {
    /// Verifies a chunk of data, and gives the digest that its map entry keeps, if it needs one.
    pub(crate) fn verify(
        &self,
        (index, range): (ChunkIndex, ByteRange),
        bytes: &[u8],
        blocks: &impl TreeBlocks,
        counters: &Counters,
    ) -> Result<Option<Digest>, VerifyError> {
        let started_ns = thread_cpu_ns();
        let outcome = match self {
            Self::Verity(tree) => tree.verify(range, bytes, blocks).map(|()| None),
            Self::Table(root) => match root.table()?.piece(index) {
                Some(digest) if Digest::of(bytes) == *digest => Ok(None),
                _ => {
                    let rule = "a piece of 256 KiB does not have the digest in the digest table";
                    Err(VerifyError::Wrong { rule, offset: range.offset() })
                }
            },
            Self::FirstSeen => Ok(Some(Digest::of(bytes))),
        };
        counters.hashed_bytes.add(bytes.len() as u64);
        counters.hashed_ns.add(thread_cpu_ns().saturating_sub(started_ns));
        outcome
    }

    /// Whether a chunk that was stored before the machine last started still is what it was.
    pub(crate) fn verify_again(
        &self,
        (index, range): (ChunkIndex, ByteRange),
        bytes: &[u8],
        entry: &MapEntry,
        blocks: &impl TreeBlocks,
        counters: &Counters,
    ) -> Result<(), VerifyError> {
        match self.verify((index, range), bytes, blocks, counters)? {
            Some(digest) if digest != entry.digest => {
                let rule = "a chunk of the cache does not have the digest that it had when it came";
                Err(VerifyError::Wrong { rule, offset: range.offset() })
            }
            _ => Ok(()),
        }
    }
}

/// How much CPU time this thread has taken, which leaves out waits for hash blocks.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
