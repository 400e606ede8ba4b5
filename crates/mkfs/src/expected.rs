//! What an image should hold, for those who read it back.

use std::path::Path;

use floe_image::{DeviceNumber, FileType, Timestamp};

use crate::{
    options::Options,
    progress::Progress,
    tree::{Body, Tree, Visit},
    xattrs::XattrTable,
};

/// Reads an image back before it gets its name.
pub trait Verifier {
    /// Compares the image in the file `image`, and its blob device in `blob`, with what it should be. The names are
    /// those of files that have no other ones yet.
    ///
    /// # Errors
    /// The image is not as it should be, or `progress` asked to stop.
    fn verify(
        &mut self,
        image: &Path,
        blob: Option<&Path>,
        expected: &Expected<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Verified, VerifyError>;
}

/// What of an image was read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// How many inodes were compared.
    pub inodes: u64,
    /// How many bytes of files were compared.
    pub content_bytes: u64,
}

/// Why an image was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerifyError {
    /// It is not as it should be: where, and in what.
    Fault(String),
    /// It could not be read: why.
    Unread(String),
    /// Progress asked to stop.
    Cancelled,
}

/// A part of a file's content, as it was when it was read from its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceDigest {
    /// The file's number.
    pub inode: usize,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: usize,
    /// The xxh64 of its bytes, with the seed 0; `None` where it is a hole.
    pub hash: Option<u64>,
}

/// What an inode should say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpectedInode<'a> {
    /// Its type.
    pub file_type: FileType,
    /// The twelve permission bits.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub link_count: u32,
    /// The time of the last change of content.
    pub modified: Timestamp,
    /// The size in bytes; `None` for a directory.
    pub size: Option<u64>,
    /// The numbers of a device.
    pub device: DeviceNumber,
    /// The target of a symbolic link.
    pub target: Option<&'a [u8]>,
}

/// What an image should hold. Inodes have numbers from 0 on, which is the root; a directory comes before what is in it.
pub struct Expected<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) visits: &'a [Visit],
    pub(crate) xattrs: &'a XattrTable,
    pub(crate) options: &'a Options,
    pub(crate) pieces: &'a [PieceDigest],
    /// By number: that of an earlier file with the same content.
    pub(crate) same: &'a [Option<usize>],
    /// By node: its number.
    pub(crate) places: Vec<usize>,
}

impl Expected<'_> {
    /// How many inodes there are.
    pub fn inode_count(&self) -> usize {
        self.visits.len()
    }

    /// Where in its file the image begins, in bytes.
    pub fn image_offset(&self) -> u64 {
        self.options.layout.offset
    }

    /// What an inode should say.
    pub fn inode(&self, number: usize) -> ExpectedInode<'_> {
        let visit = &self.visits[number];
        let node = self.tree.node(visit.node);
        let (uid, gid) = self.options.ownership.apply(node.metadata.uid, node.metadata.gid);
        let (size, device, target) = match &node.body {
            Body::Directory(_) => (None, DeviceNumber::default(), None),
            Body::File(content) => (Some(content.size()), DeviceNumber::default(), None),
            Body::Symlink(target) => (Some(target.len() as u64), DeviceNumber::default(), Some(target.as_slice())),
            Body::Special(_, device) => (Some(0), *device, None),
        };
        ExpectedInode {
            file_type: node.file_type(),
            permissions: node.metadata.permissions,
            uid,
            gid,
            link_count: visit.link_count,
            modified: self.options.times.apply(node.metadata.modified),
            size,
            device,
            target,
        }
    }

    /// The extended attributes of an inode, in the order of their names.
    pub fn xattrs(&self, number: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        let xattrs = &self.tree.node(self.visits[number].node).xattrs;
        let kept = xattrs.iter().filter(|(name, value)| self.xattrs.keeps(name, value));
        kept.map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// The entries of a directory without `.` and `..`, in the order of their names: names and inodes.
    pub fn entries(&self, number: usize) -> impl Iterator<Item = (&[u8], usize)> {
        self.tree.entries(self.visits[number].node).map(|(name, node)| (name, self.places[node.index()]))
    }

    /// The content of files, in the order of the image. What equal files share is there once.
    pub fn pieces(&self) -> &[PieceDigest] {
        self.pieces
    }

    /// Files that were found to have the content of an earlier one, whose pieces alone are listed: the numbers of both.
    pub fn duplicates(&self) -> impl Iterator<Item = (usize, usize)> {
        self.same.iter().enumerate().filter_map(|(number, earlier)| Some((number, (*earlier)?)))
    }

    /// A path by which an inode is found, with a slash in front.
    pub fn path(&self, number: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut number = number;
        while number != 0 {
            let parent = self.places[self.visits[number].parent.index()];
            let name = self.entries(parent).find(|(_, inode)| *inode == number).map(|(name, _)| name.to_vec());
            names.push(name.unwrap_or_default());
            number = parent;
        }
        if names.is_empty() {
            return b"/".to_vec();
        }
        names.into_iter().rev().fold(Vec::new(), |path, name| [path.as_slice(), b"/", &name].concat())
    }
}
