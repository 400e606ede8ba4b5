//! The original, and what is rendered of it.

use std::{io::ErrorKind, sync::Arc};

use floe_image::{Error, FileSystem, Nid, Place, Result};

use crate::{
    addresses::Addresses,
    geometry::{Class, Geometry, Slot},
    metadata_readahead::MetadataReadahead,
    node::Node,
    packed_directories::PackedDirectories,
};

/// What all views of an image share.
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) addresses: Addresses,
    pub(crate) packed_directories: PackedDirectories,
    pub(crate) readahead: MetadataReadahead,
    /// The block that the superblock is in.
    pub(crate) superblock: Vec<u8>,
}

/// The original through a reader that may wait, or one that may not, and what is rendered of it.
///
/// Everything that is rendered is a function of the original, but for the addresses of data, which are given once.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) shared: Arc<Shared>,
    /// Whether it may do what takes long.
    pub(crate) may_wait: bool,
}

impl View {
    /// The inode `nid` of the original.
    ///
    /// # Errors
    /// As [`Node::read`].
    pub(crate) fn node(&self, nid: Nid) -> Result<Node> {
        Node::read(self.file_system.as_ref(), nid, self.shared.geometry.number_max())
    }

    /// The inode that is rendered in `slot`, or `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read now.
    pub(crate) fn node_in(&self, slot: Slot) -> Result<Option<Node>> {
        let nid = match slot.class {
            Class::BrokenFile | Class::BrokenDirectory => None,
            Class::Root => Some(self.file_system.root()),
            _ => lasting(self.file_system.find_number(slot.number))?.flatten(),
        };
        let node = nid.map(|nid| lasting(self.node(nid))).transpose()?.flatten();
        Ok(node.filter(|node| node.slot == slot))
    }

    /// The nid under which an inode is rendered.
    pub(crate) fn virtual_nid(&self, node: &Node) -> u64 {
        self.shared.geometry.nid(node.slot, node.within())
    }
}

/// What a question about the original gave, or `None` where it breaks its format, for good.
///
/// # Errors
/// The original cannot be read now.
pub(crate) fn lasting<T>(answer: Result<T>) -> Result<Option<T>> {
    let is_short = |error: &Error| matches!(error, Error::Io { error, .. } if error.kind() == ErrorKind::UnexpectedEof);
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_transient() && !is_short(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// What is read of a place that holds nothing readable.
pub(crate) fn unreadable() -> Error {
    Error::corrupt("what was rendered here cannot be read", Place::UNKNOWN)
}
