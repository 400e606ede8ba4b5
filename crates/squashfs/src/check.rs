//! The check of a whole image.
//!
//! [`run`] reads all metadata and compares the fields that repeat each other. It decodes no data and starts no threads.
//! It passes each data and fragment block once, as a [`BlockToDecode`], to the caller. The caller decodes the block on
//! any thread and passes the result to [`BlockToDecode::judge`].
//!
//! Memory is proportional to the number of inodes and of distinct data blocks: about 100 bytes each.

mod directory;
mod file;
mod tables;
mod tree;

pub use file::BlockToDecode;

use std::collections::HashSet;

use floe_image::{ByteRange, ByteRangeSet, Error, Finding, Nid, Place, Result, Severity};

use crate::{Squashfs, read::MetadataPosition};

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
    path: PathId,
}

/// The image under check, with the faults of its inodes.
struct CheckedImage<'run, 'report> {
    squashfs: &'run Squashfs,
    report: &'run mut Report<'report>,
    paths: Paths,
    /// Inodes with faults.
    faulty: HashSet<Nid>,
    /// The parts of the inode table that belong to inodes.
    inode_claims: Claims,
}

impl<'run, 'report> CheckedImage<'run, 'report> {
    fn new(squashfs: &'run Squashfs, report: &'run mut Report<'report>) -> Self {
        let (paths, faulty, inode_claims) = (Paths::default(), HashSet::new(), Claims::default());
        Self { squashfs, report, paths, faulty, inode_claims }
    }

    /// Reports a fault of an inode.
    fn add_finding(&mut self, reached: Reached, finding: Finding) {
        self.faulty.insert(reached.nid);
        let path = if self.report.is_reporting() { self.paths.path(reached.path) } else { None };
        self.report.add(finding.with_path(path));
    }

    /// Reports that an inode cannot be read.
    fn add_error(&mut self, reached: Reached, error: &Error) {
        self.add_finding(reached, Finding::from(error));
    }
}

/// The longest path in a finding. Longer paths cannot be opened, and make many findings slow to report.
const PATH_BYTES_MAX: usize = 4096;

/// Identifies the path of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PathId(usize);

/// The paths of the directories reached so far.
#[derive(Default)]
struct Paths {
    names: Vec<(Option<PathId>, Box<[u8]>)>,
}

impl Paths {
    /// Adds the entry `name` of `parent`; without a parent, the root.
    fn add(&mut self, parent: Option<PathId>, name: &[u8]) -> PathId {
        self.names.push((parent, name.into()));
        PathId(self.names.len().saturating_sub(1))
    }

    /// The full path, starting with `/`; `None` if it is too long to report.
    fn path(&self, id: PathId) -> Option<Vec<u8>> {
        let (mut names, mut len) = (Vec::new(), 0_usize);
        let mut next = Some(id);
        // A parent is added before its children, so the loop ends.
        while let Some((parent, name)) = next.and_then(|id| self.names.get(id.0)) {
            len = len.saturating_add(name.len()).saturating_add(1);
            if len > PATH_BYTES_MAX {
                return None;
            }
            names.push(name);
            next = *parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev().filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }
}

/// The parts of a metadata table that belong to structures read so far. Each byte belongs to one inode, directory or
/// attribute set. If structures could overlap, a small image could have so many of them that a walk never ends.
#[derive(Default)]
struct Claims {
    taken: ByteRangeSet,
}

/// A part of a table, claimed while it is read.
struct Claim<'run> {
    claims: &'run mut Claims,
    at: u64,
    rule: &'static str,
    place: Place,
}

impl Claims {
    /// Begins a claim at a position; `rule` is the fault reported if a part of it is claimed already.
    fn begin(&mut self, from: MetadataPosition, rule: &'static str, place: Place) -> Claim<'_> {
        Claim { claims: self, at: linear(from), rule, place }
    }
}

impl Claim<'_> {
    /// Claims the bytes before a position.
    fn advance(&mut self, to: MetadataPosition) -> Result<()> {
        let range = ByteRange::between(self.at, linear(to));
        self.at = range.end();
        if self.claims.taken.insert(range) { Err(Error::corrupt(self.rule, self.place)) } else { Ok(()) }
    }
}

/// Maps positions to increasing numbers. Skips some numbers at the end of each block.
fn linear(position: MetadataPosition) -> u64 {
    position.block.saturating_mul(1 << 16).saturating_add(u64::from(position.offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root() {
        let mut paths = Paths::default();
        let root = paths.add(None, b"");
        let one = paths.add(Some(root), b"one");
        let two = paths.add(Some(one), b"two");
        for (id, expected) in [(root, &b"/"[..]), (one, b"/one"), (two, b"/one/two")] {
            assert_eq!(paths.path(id).as_deref(), Some(expected));
        }
        let mut deep = two;
        for _ in 0..5000 {
            deep = paths.add(Some(deep), b"x");
        }
        assert_eq!(paths.path(deep), None);
    }

    #[test]
    fn claiming_twice_is_refused() {
        let mut claims = Claims::default();
        let position = |block, offset| MetadataPosition { block, offset };
        for (from, steps, expected) in [
            ((100, 5), vec![(100, 9), (100, 9), (200, 0), (200, 7)], true),
            ((200, 7), vec![(200, 9)], true),
            ((100, 0), vec![(100, 5)], true),
            ((100, 9000), vec![(150, 0)], false),
            ((90, 3), vec![(90, 9), (100, 2)], false),
            ((200, 8), vec![(200, 8)], true),
        ] {
            let mut claim = claims.begin(position(from.0, from.1), "taken", Place::UNKNOWN);
            let all: Result<()> = steps.iter().try_for_each(|(block, offset)| claim.advance(position(*block, *offset)));
            assert_eq!(all.is_ok(), expected, "{from:?}");
        }
    }
}
