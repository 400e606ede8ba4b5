//! Checks the tree from the root, and compares it with the tables.

use std::collections::{HashMap, HashSet};

use floe_image::{DIRECTORY_DEPTH_MAX, DIRECTORY_TOO_DEEP, Error, FileSystem, Nid, Place};

use super::{CheckedImage, Claims, Finding, Reached, Report, file::Files};
use crate::{
    Squashfs,
    read::{Inode, InodeData, MetadataPosition},
};

/// An inode that the check has reached.
struct Seen {
    number: u32,
    link_count: u32,
    /// The number of dirents that refer to it.
    dirent_count: u32,
    is_directory: bool,
    path: super::PathId,
}

/// The state of a tree check.
pub(super) struct Tree<'run, 'report> {
    pub(super) image: CheckedImage<'run, 'report>,
    inodes: HashMap<Nid, Seen>,
    /// Directories still to be checked, with the number of directories above each.
    pending: Vec<(Reached, Inode, usize)>,
    /// The number of directories above the inodes that are being reached.
    depth: usize,
    files: Files,
    /// The parts of the directory table that belong to directories.
    pub(super) listing_claims: Claims,
}

pub(super) fn check(squashfs: &Squashfs, report: &mut Report<'_>) {
    let mut tree = Tree {
        image: CheckedImage::new(squashfs, report),
        inodes: HashMap::new(),
        pending: Vec::new(),
        depth: 0,
        files: Files::default(),
        listing_claims: Claims::default(),
    };
    let root = Reached { nid: squashfs.superblock.root, path: tree.image.paths.add(None, b"") };
    tree.reach(root);
    while let Some((directory, inode, depth)) = tree.pending.pop().filter(|_| !tree.image.report.is_cancelled()) {
        tree.depth = depth.saturating_add(1);
        tree.check_directory(directory, &inode);
    }
    std::mem::take(&mut tree.files).check_fragments(&mut tree.image);
    tree.check_link_counts();
    tree.check_numbers();
    tree.check_inode_table();
}

impl Tree<'_, '_> {
    /// Checks the root or an inode that a dirent refers to. Returns the inode the first time. Queues directories.
    pub(super) fn reach(&mut self, reached: Reached) -> Option<Inode> {
        let Reached { nid, path } = reached;
        if let Some(seen) = self.inodes.get_mut(&nid) {
            seen.dirent_count = seen.dirent_count.saturating_add(1);
            if seen.is_directory {
                self.image.add_finding(reached, Finding::error("directory is listed twice", Place::inode(nid)));
            }
            return None;
        }
        let inode = match self.image.squashfs.inode(nid) {
            Ok(inode) => inode,
            Err(error) => {
                self.image.add_error(reached, &error);
                return None;
            }
        };
        let is_directory = matches!(inode.data, InodeData::Directory(_));
        let seen = Seen { number: inode.number, link_count: inode.link_count, dirent_count: 1, is_directory, path };
        self.inodes.insert(nid, seen);
        self.image.report.summary.inode_count = self.image.report.summary.inode_count.saturating_add(1);
        self.check_inode(reached, &inode);
        if is_directory {
            self.image.report.summary.directory_count = self.image.report.summary.directory_count.saturating_add(1);
            if self.depth == DIRECTORY_DEPTH_MAX {
                self.image.add_finding(reached, Finding::error(DIRECTORY_TOO_DEEP, Place::inode(nid)));
            }
            self.pending.push((reached, inode, self.depth));
        }
        Some(inode)
    }

    /// The number of an inode that was reached.
    pub(super) fn number_of(&self, nid: Nid) -> Option<u32> {
        self.inodes.get(&nid).map(|seen| seen.number)
    }

    fn check_inode(&mut self, reached: Reached, inode: &Inode) {
        if let Err(error) = self.image.squashfs.attr(reached.nid) {
            self.image.add_error(reached, &error);
        }
        match &inode.data {
            InodeData::Regular(file) => {
                self.files.check(&mut self.image, reached, inode, file);
            }
            InodeData::Symlink { size: 0, .. } => {
                let finding = Finding::error("symbolic link without a target", Place::inode(reached.nid));
                self.image.add_finding(reached, finding);
            }
            InodeData::Symlink { target, size } => {
                let place = Place::inode(reached.nid);
                let mut claim = self.image.inode_claims.begin(*target, "inode overlaps another one", place);
                let end = MetadataPosition { offset: target.offset.saturating_add(*size), ..*target };
                let read = claim.advance(end).and_then(|()| self.image.squashfs.read_link(reached.nid));
                if let Err(error) = read {
                    self.image.add_error(reached, &error);
                }
            }
            _ => {}
        }
    }

    fn check_link_counts(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        for (nid, seen) in &inodes {
            if self.image.report.is_cancelled() {
                break;
            }
            if !seen.is_directory && seen.link_count != seen.dirent_count {
                let rule = format!("link count is {}, but there are {} dirents", seen.link_count, seen.dirent_count);
                let reached = Reached { nid: *nid, path: seen.path };
                self.image.add_finding(reached, Finding::error(rule, Place::inode(*nid)));
            }
        }
        self.inodes = inodes;
    }

    /// Compares inode numbers with each other and with the export table.
    fn check_numbers(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        let mut numbers = HashSet::new();
        for (nid, seen) in &inodes {
            if self.image.report.is_cancelled() {
                break;
            }
            let reached = Reached { nid: *nid, path: seen.path };
            if !numbers.insert(seen.number) {
                let finding = Finding::error("duplicate inode number", Place::inode(*nid));
                self.image.add_finding(reached, finding);
            }
            let Some(export) = &self.image.squashfs.export else { continue };
            let cursor = export.cursor_at(&self.image.squashfs.metadata, seen.number.saturating_sub(1));
            match cursor.and_then(|mut cursor| cursor.read_u64()) {
                Ok(reference) if reference == nid.0 => {}
                Ok(_) => {
                    let finding = Finding::error("export table leads to another inode", Place::inode(*nid));
                    self.image.add_finding(reached, finding);
                }
                Err(error) => self.image.add_error(reached, &error),
            }
        }
        self.inodes = inodes;
    }

    /// Finds inodes to which no directory refers. Their numbers must be unique too: without an export table, a reader
    /// searches the whole inode table for the number of a parent directory.
    fn check_inode_table(&mut self) {
        let squashfs = self.image.squashfs;
        let mut scanned_count = 0_u64;
        let mut unreached_count = 0_u64;
        let numbers: HashSet<u32> = self.inodes.values().map(|seen| seen.number).collect();
        for inode in squashfs.scan_inodes() {
            if self.image.report.is_cancelled() {
                return;
            }
            match inode {
                Ok(inode) => {
                    scanned_count = scanned_count.saturating_add(1);
                    let is_known = self.inodes.contains_key(&inode.nid) || self.image.faulty.contains(&inode.nid);
                    unreached_count = unreached_count.saturating_add(u64::from(!is_known));
                    if !is_known && numbers.contains(&inode.number) {
                        self.image.report.add(Finding::error("duplicate inode number", Place::inode(inode.nid)));
                    }
                }
                Err(error) => {
                    let nid = match &error {
                        Error::Corrupt { place, .. } | Error::Io { place, .. } => place.nid,
                        _ => None,
                    };
                    if nid.is_none_or(|nid| !self.image.faulty.contains(&nid)) {
                        self.image.report.add(Finding::from(&error));
                    }
                }
            }
        }
        let place = Place::at(squashfs.inode_table.start);
        if unreached_count > 0 {
            let rule = format!("{unreached_count} inodes are not in any directory");
            self.image.report.add(Finding::warning(rule, place));
        }
        let counted = u64::from(squashfs.superblock.inode_count);
        if scanned_count != counted && self.image.faulty.is_empty() {
            let rule = format!("{scanned_count} inodes found, but the superblock states {counted}");
            self.image.report.add(Finding::error(rule, place));
        }
    }
}
