//! Everything that is wrong with an image.
//!
//! [`run`] reads all metadata and compares what says the same thing twice. It decodes no data and starts no threads: it
//! hands out each data and fragment block once, as a [`BlockToDecode`], to be decoded wherever the caller likes; what
//! comes of that is judged by [`BlockToDecode::judge`].
//!
//! Memory is in proportion to the number of inodes and of distinct data blocks: about 100 bytes for each.

mod block;
mod claims;
mod directory;
mod file;
mod path;
mod tables;
mod tree;

pub use block::BlockToDecode;
use floe_image::{Finding, Nid, Severity};

use crate::Squashfs;

/// How many things are wrong is told up to here; the rest are only counted.
const FINDINGS_MAX: u64 = 10_000;

/// What was gone through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The inodes that were reached from the root.
    pub inode_count: u64,
    /// The directories among them.
    pub directory_count: u64,
    /// The distinct data and fragment blocks that were handed out.
    pub block_count: u64,
    /// The findings that are errors.
    pub error_count: u64,
    /// The findings that are warnings.
    pub warning_count: u64,
}

/// Checks an image: `found` is told what is wrong, and `to_decode` is given what is left to be done. Ends soon once
/// `is_cancelled`.
pub fn run(
    squashfs: &Squashfs,
    found: &mut dyn FnMut(Finding),
    to_decode: &mut dyn FnMut(BlockToDecode),
    is_cancelled: &dyn Fn() -> bool,
) -> Summary {
    let mut report = Report { found, to_decode, is_cancelled, summary: Summary::default() };
    tables::check(squashfs, &mut report);
    tree::check(squashfs, &mut report);
    report.summary
}

/// Where findings and work go.
struct Report<'run> {
    found: &'run mut dyn FnMut(Finding),
    to_decode: &'run mut dyn FnMut(BlockToDecode),
    is_cancelled: &'run dyn Fn() -> bool,
    summary: Summary,
}

impl Report<'_> {
    /// Whether the check is to end before its end.
    fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Whether a further finding is told, not only counted.
    fn tells(&self) -> bool {
        self.summary.error_count.saturating_add(self.summary.warning_count) < FINDINGS_MAX
    }

    fn add(&mut self, finding: Finding) {
        let is_told = self.tells();
        let count = match finding.severity {
            Severity::Error => &mut self.summary.error_count,
            Severity::Warning => &mut self.summary.warning_count,
        };
        *count = count.saturating_add(1);
        if is_told {
            (self.found)(finding);
        }
    }

    fn decode(&mut self, block: BlockToDecode) {
        self.summary.block_count = self.summary.block_count.saturating_add(1);
        (self.to_decode)(block);
    }
}

/// An inode and the path by which it was reached first.
#[derive(Clone, Copy, Debug)]
struct Reached {
    nid: Nid,
    path: path::PathId,
}
