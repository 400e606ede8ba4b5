//! The image under check, and its faults.

use std::collections::HashSet;

use floe_image::{Error, Nid};

use super::{Finding, Reached, Report, claims::Claims, path::Paths};
use crate::Squashfs;

/// The image under check, with the faults of its inodes.
pub(super) struct CheckedImage<'run, 'report> {
    pub(super) squashfs: &'run Squashfs,
    pub(super) report: &'run mut Report<'report>,
    pub(super) paths: Paths,
    /// Inodes with faults.
    pub(super) faulty: HashSet<Nid>,
    /// The parts of the inode table that belong to inodes.
    pub(super) inode_claims: Claims,
}

impl<'run, 'report> CheckedImage<'run, 'report> {
    pub(super) fn new(squashfs: &'run Squashfs, report: &'run mut Report<'report>) -> Self {
        let (paths, faulty, inode_claims) = (Paths::default(), HashSet::new(), Claims::default());
        Self { squashfs, report, paths, faulty, inode_claims }
    }

    /// Reports a fault of an inode.
    pub(super) fn add_finding(&mut self, reached: Reached, finding: Finding) {
        self.faulty.insert(reached.nid);
        let path = if self.report.is_reporting() { self.paths.path(reached.path) } else { None };
        self.report.add(finding.with_path(path));
    }

    /// Reports that an inode cannot be read.
    pub(super) fn add_error(&mut self, reached: Reached, error: &Error) {
        self.add_finding(reached, Finding::from(error));
    }
}
