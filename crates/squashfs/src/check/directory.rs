//! Checks directories: dirents and indexes.

use std::collections::HashMap;

use floe_image::{Error, Place, Result};

use super::{Finding, Reached, tree::Tree};
use crate::read::{DirectoryInode, Inode, InodeData, ListedInode, ListingPosition, Name};

/// The links of a directory without subdirectories: its own `.`, and the dirent in its parent.
const OWN_LINKS: u32 = 2;

impl Tree<'_, '_> {
    /// Checks the entries of a directory and the inodes they refer to.
    pub(super) fn check_directory(&mut self, directory: Reached, inode: &Inode) {
        let InodeData::Directory(data) = &inode.data else { return };
        let mut headers = HashMap::new();
        match self.check_dirents(directory, data, &mut headers) {
            Ok(_) if self.image.report.is_cancelled() => {}
            Ok(subdirectory_count) => {
                let expected = subdirectory_count.saturating_add(OWN_LINKS);
                if inode.link_count != expected {
                    let rule = format!("link count is {}, expected {expected}", inode.link_count);
                    self.image.add_finding(directory, Finding::warning(rule, Place::inode(directory.nid)));
                }
                if let Err(error) = self.check_index(directory, data, &headers) {
                    self.image.add_error(directory, &error);
                }
            }
            Err(error) => self.image.add_error(directory, &error),
        }
    }

    /// Checks each dirent with its inode; returns the number of subdirectories.
    fn check_dirents(
        &mut self,
        directory: Reached,
        data: &DirectoryInode,
        headers: &mut HashMap<u32, (ListingPosition, Box<[u8]>)>,
    ) -> Result<u32> {
        let squashfs = self.image.squashfs;
        let start = squashfs.listing_start(data);
        let mut listing = squashfs.listing(directory.nid, data, start);
        let mut name = Name::new();
        let mut subdirectory_count = 0_u32;
        let rule = "directory shares its listing with another one";
        let mut claimed = start.metadata;
        while let Some(listed) = listing.next(&mut name)? {
            let end = listing.position();
            self.listing_claims.begin(claimed, rule, Place::inode(directory.nid)).advance(end)?;
            claimed = end;
            if self.image.report.is_cancelled() {
                break;
            }
            if data.index_count > 0 && listing.was_first_under_header() {
                let header = listing.header();
                headers.insert(header.offset, (header, name.as_bytes().into()));
            }
            let child = Reached { nid: listed.nid, path: self.image.paths.add(Some(directory.path), name.as_bytes()) };
            let is_directory = self.check_dirent(directory, child, &listed);
            subdirectory_count = subdirectory_count.saturating_add(u32::from(is_directory));
        }
        Ok(subdirectory_count)
    }

    /// Compares a dirent with its inode; returns whether the inode is a directory.
    fn check_dirent(&mut self, directory: Reached, child: Reached, listed: &ListedInode) -> bool {
        let inode = match self.reach(child) {
            Some(inode) => inode,
            None => match self.image.squashfs.inode(child.nid) {
                Ok(inode) => inode,
                Err(_) => return false,
            },
        };
        let place = Place::inode(child.nid);
        if inode.file_type() != listed.file_type {
            self.image.add_finding(child, Finding::error("dirent type differs from that of its inode", place));
        }
        if inode.number != listed.number {
            self.image
                .add_finding(child, Finding::error("dirent's inode number differs from that of its inode", place));
        }
        let InodeData::Directory(data) = &inode.data else { return false };
        if Some(data.parent) != self.number_of(directory.nid) {
            self.image
                .add_finding(child, Finding::error("directory's parent is not the directory that lists it", place));
        }
        true
    }

    /// Compares a directory index with the headers to which it refers.
    fn check_index(
        &mut self,
        directory: Reached,
        data: &DirectoryInode,
        headers: &HashMap<u32, (ListingPosition, Box<[u8]>)>,
    ) -> Result<()> {
        let mut entries = self.image.squashfs.index_entries(directory.nid, data);
        let mut name = Name::new();
        let place = Place::inode(directory.nid);
        let mut claim = self.image.inode_claims.begin(data.index, "inode overlaps another one", place);
        while let Some(entry) = entries.next(&mut name)? {
            claim.advance(entries.position())?;
            let header = headers.get(&entry.offset);
            if !header.is_some_and(|(position, first)| *position == entry && **first == *name.as_bytes()) {
                return Err(Error::corrupt("directory index does not lead to a header", Place::inode(directory.nid)));
            }
        }
        Ok(())
    }
}
