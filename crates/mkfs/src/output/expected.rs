//! The expected contents of an image, for verification.

use std::path::{Path, PathBuf};

use floe_codec::release_freed_memory;
use floe_image::{DeviceNumber, FileType, Timestamp};

use crate::{
    compress::{piece::PieceDigest, piece_digests::PieceDigests},
    content::duplicates::Duplicates,
    error::{self, Error},
    files::image_file::ImageFile,
    layout::{CompleteLayout, StoredXattrs},
    options::Options,
    progress::Progress,
    tree::{Body, OrderedNode, Places, Tree},
};

/// Verifies an image before it gets its name.
pub trait Verifier {
    /// Compares the image in the file `image`, whose extra devices are `devices`, with its expected contents. The image and its
    /// blob device have no permanent names yet.
    ///
    /// # Errors
    /// The image differs, or `progress` asked to stop.
    fn verify(
        &mut self,
        image: &Path,
        devices: &[PathBuf],
        expected: &Expected<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Verified, VerifyError>;
}

/// The extent of a verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// The number of inodes compared.
    pub inodes: u64,
    /// The number of file bytes compared.
    pub content_bytes: u64,
}

/// The reason for which verification failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerifyError {
    /// The image differs; the text describes the difference with its place.
    Fault(String),
    /// The image could not be read; the text states the reason.
    Unread(String),
    /// [`Progress`] asked to stop.
    Cancelled,
}

/// The expected attributes of an inode.
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
    /// The modification time.
    pub modified: Timestamp,
    /// The size in bytes; `None` for a directory.
    pub size: Option<u64>,
    /// The device numbers.
    pub device: DeviceNumber,
    /// The target of a symbolic link.
    pub target: Option<&'a [u8]>,
}

/// The expected contents of an image. Inodes are numbered from 0, the root; a directory precedes its entries.
pub struct Expected<'a> {
    tree: &'a Tree,
    order: &'a [OrderedNode],
    xattrs: &'a StoredXattrs,
    options: &'a Options,
    pieces: &'a PieceDigests,
    duplicates: &'a Duplicates,
    /// The inode number of each node.
    places: Places,
}

/// Lets `verifier` compare an image with the tree.
pub(crate) fn verify(
    verifier: &mut dyn Verifier,
    tree: &Tree,
    order: &[OrderedNode],
    duplicates: &Duplicates,
    layout: &mut CompleteLayout,
    options: &Options,
    progress: &mut dyn Progress,
) -> error::Result<Verified> {
    release_freed_memory();
    let image = layout.image.readable_path()?;
    let blob = layout.blob.as_mut().map(ImageFile::readable_path).transpose()?;
    let referred = tree.devices().iter().map(|device| device.path.clone());
    let devices: Vec<PathBuf> = blob.into_iter().chain(referred).collect();
    let (xattrs, pieces, places) = (&layout.xattrs, &layout.pieces, tree.places(order));
    let expected = Expected { tree, order, xattrs, options, pieces, duplicates, places };
    verifier.verify(&image, &devices, &expected, progress).map_err(|error| match error {
        VerifyError::Fault(fault) => Error::Verify(fault),
        VerifyError::Unread(reason) => Error::Unverified(reason),
        VerifyError::Cancelled => Error::Cancelled,
    })
}

impl Expected<'_> {
    /// The number of inodes.
    pub fn inode_count(&self) -> usize {
        self.order.len()
    }

    /// The offset of the image in its file, in bytes.
    pub fn image_offset(&self) -> u64 {
        self.options.layout.offset
    }

    /// The expected attributes of an inode.
    pub fn inode(&self, number: usize) -> ExpectedInode<'_> {
        let ordered = &self.order[number];
        let node = self.tree.node(ordered.node);
        let (uid, gid) = self.options.ownership.apply(node.metadata.uid, node.metadata.gid);
        let (size, device, target) = match &node.body {
            Body::Directory(_) => (None, DeviceNumber::default(), None),
            Body::File(content) => (Some(content.size()), DeviceNumber::default(), None),
            Body::Symlink(target) => (Some(target.len() as u64), DeviceNumber::default(), Some(&**target)),
            Body::Special(_, device) => (Some(0), *device, None),
        };
        ExpectedInode {
            file_type: node.file_type(),
            permissions: node.metadata.permissions,
            uid,
            gid,
            link_count: ordered.link_count,
            modified: self.options.stored_time(node.metadata.modified),
            size,
            device,
            target,
        }
    }

    /// The xattrs of an inode, in the order of their names.
    pub fn xattrs(&self, number: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        let xattrs = &self.tree.node(self.order[number].node).xattrs;
        let kept = xattrs.iter().filter(|(name, value)| self.xattrs.shows(name, value));
        kept.map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// The entries of a directory without `.` and `..`, in the order of their names: name and inode number.
    pub fn entries(&self, number: usize) -> impl Iterator<Item = (&[u8], usize)> {
        self.tree.entries(self.order[number].node).map(|(name, node)| (name, self.places.of(node)))
    }

    /// The content of files in tree order. Content that equal files share is listed once.
    pub fn pieces(&self) -> impl Iterator<Item = PieceDigest> + Clone {
        self.pieces.iter()
    }

    /// Pairs of inode numbers: a file without pieces of its own, and the earlier file with the same content.
    pub fn duplicates(&self) -> impl Iterator<Item = (usize, usize)> {
        self.duplicates.iter()
    }

    /// A path of an inode, with a leading slash.
    pub fn path(&self, number: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut number = number;
        while number != 0 {
            let parent = self.places.of(self.order[number].parent);
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
