//! The check of a whole image.
//!
//! [`run`] reads all metadata and compares the fields that repeat each other. It decodes no data and starts no threads.
//! It passes each data and fragment block once, as a [`BlockToDecode`], to the caller. The caller decodes the block on
//! any thread and passes the result to [`BlockToDecode::judge`].
//!
//! Memory is proportional to the number of inodes and of distinct data blocks: about 100 bytes each.

mod block;
mod checked_image;
mod claims;
mod directory;
mod file;
mod path;
mod tables;
mod tree;

pub use block::BlockToDecode;
use floe_image::{Finding, Nid, Severity};

use crate::Squashfs;

/// The maximum number of reported findings; further ones are only counted.
const FINDINGS_MAX: u64 = 10_000;

/// The totals of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The inodes reached from the root.
    pub inode_count: u64,
    /// The directories among them.
    pub directory_count: u64,
    /// The distinct data and fragment blocks passed to the caller.
    pub block_count: u64,
    /// The number of errors.
    pub error_count: u64,
    /// The number of warnings.
    pub warning_count: u64,
}

/// Checks an image. Passes faults to `found` and undecoded blocks to `to_decode`. Stops soon after `is_cancelled`
/// returns true.
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

/// Receives findings and blocks.
struct Report<'run> {
    found: &'run mut dyn FnMut(Finding),
    to_decode: &'run mut dyn FnMut(BlockToDecode),
    is_cancelled: &'run dyn Fn() -> bool,
    summary: Summary,
}

impl Report<'_> {
    /// Whether the caller has cancelled the check.
    fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Whether a further finding is reported, rather than only counted.
    fn is_reporting(&self) -> bool {
        self.summary.error_count.saturating_add(self.summary.warning_count) < FINDINGS_MAX
    }

    fn add(&mut self, finding: Finding) {
        let is_reported = self.is_reporting();
        let count = match finding.severity {
            Severity::Error => &mut self.summary.error_count,
            Severity::Warning => &mut self.summary.warning_count,
        };
        *count = count.saturating_add(1);
        if is_reported {
            (self.found)(finding);
        }
    }

    fn decode(&mut self, block: BlockToDecode) {
        self.summary.block_count = self.summary.block_count.saturating_add(1);
        (self.to_decode)(block);
    }
}

/// An inode and the first path to it.
#[derive(Clone, Copy, Debug)]
struct Reached {
    nid: Nid,
    path: path::PathId,
}
