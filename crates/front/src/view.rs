//! The original image with the state of its rendering.

use std::sync::Arc;

use floe_image::{ByteRange, Error, FileSystem, FileType, Nid, Place, Result};

use crate::{
    addresses::Addresses,
    fault::lasting,
    geometry::{Class, Geometry, Slot},
    kept::KeptRun,
    metadata_readahead::MetadataReadahead,
    node::Node,
    packed_directories::PackedDirectories,
    parents::Parents,
    recent::Recent,
    superblock::superblock,
};

/// Data of a file, a directory or a symbolic link that has addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    /// The inode in the original.
    pub(crate) nid: Nid,
    /// The inode in the virtual image.
    pub(crate) front_nid: u64,
    /// The bytes of the file in the run. A run consists of whole blocks, so it may be longer.
    pub(crate) range: ByteRange,
    /// Whether it is file data, which is not rendered.
    pub(crate) is_file: bool,
}

/// The state that all views of an image share.
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) addresses: Addresses,
    pub(crate) packed_directories: PackedDirectories,
    pub(crate) parents: Parents,
    /// The data of runs that were looked up recently, by their first blocks.
    pub(crate) placed: Recent<Placed>,
    pub(crate) readahead: MetadataReadahead,
    /// The block with the superblock.
    pub(crate) superblock: Vec<u8>,
}

impl Shared {
    /// The state before anything is rendered, and the root.
    ///
    /// # Errors
    /// The root cannot be read, or the image has inode numbers beyond 2^38 or does not find inodes by number.
    pub(crate) fn new(original: &dyn FileSystem) -> Result<(Self, Node)> {
        let geometry = Geometry::of(original).ok_or(Error::unsupported("inode numbers beyond 2^38"))?;
        // An image whose inodes cannot be found by number has no virtual image. No inode has the number 0.
        original.find_number(0)?;
        let root = Node::read(original, original.root(), &geometry)?;
        if root.attr().file_type != FileType::Directory {
            return Err(Error::corrupt("root is not a directory", Place::inode(root.nid)));
        }
        let superblock = superblock(&original.info(), geometry.nid(root.slot, root.within()), None);
        let shared = Self {
            geometry,
            superblock,
            addresses: Default::default(),
            packed_directories: Default::default(),
            parents: Default::default(),
            placed: Default::default(),
            readahead: Default::default(),
        };
        Ok((shared, root))
    }
}

/// Renders the original, which it reads with a blocking or a non-blocking reader.
///
/// Rendering is deterministic, with two exceptions: addresses of data are assigned in the order of first use, and a
/// directory that a corrupt image lists in several directories belongs to the first one that is rendered.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) shared: Arc<Shared>,
    /// Whether it may wait for the source and do long work.
    pub(crate) may_wait: bool,
    /// The original with a non-blocking reader, for a view that may wait.
    pub(crate) non_blocking: Option<Arc<dyn FileSystem>>,
}

impl View {
    /// The inode `nid` of the original.
    ///
    /// # Errors
    /// As [`Node::read`].
    pub(crate) fn node(&self, nid: Nid) -> Result<Node> {
        Node::read(self.file_system.as_ref(), nid, &self.shared.geometry)
    }

    /// The same view with the non-blocking reader, if there is one.
    pub(crate) fn non_blocking_view(&self) -> Option<Self> {
        let file_system = Arc::clone(self.non_blocking.as_ref()?);
        Some(Self { file_system, shared: Arc::clone(&self.shared), may_wait: false, non_blocking: None })
    }

    /// The inode that is rendered in `slot`, or `None` if there is none or it breaks the original's format.
    ///
    /// # Errors
    /// The original cannot be read now.
    pub(crate) fn node_in(&self, slot: Slot) -> Result<Option<Node>> {
        let nid = match slot.class {
            Class::BrokenFile | Class::BrokenDirectory => None,
            Class::Root => Some(self.file_system.root()),
            Class::Misnumbered => self.shared.geometry.misnumbered_nid(slot.number),
            _ => lasting(self.file_system.find_number(slot.number))?.flatten(),
        };
        let node = nid.map(|nid| lasting(self.node(nid))).transpose()?.flatten();
        Ok(node.filter(|node| node.slot == slot))
    }

    /// The data of a run of a kept image.
    ///
    /// # Errors
    /// The original cannot be read now.
    pub(crate) fn kept_data(&self, run: &KeptRun) -> Result<Placed> {
        self.shared.placed.get_or(run.blocks.0, || {
            let size = self.file_system.attr(run.nid)?.size;
            let end = size.min(run.offset.saturating_add(run.addresses().len()));
            let range = ByteRange::between(run.offset.min(end), end);
            Ok(Placed { nid: run.nid, front_nid: run.front_nid, range, is_file: true })
        })
    }

    /// The nid of an inode in the virtual image.
    pub(crate) fn virtual_nid(&self, node: &Node) -> u64 {
        self.shared.geometry.nid(node.slot, node.within())
    }
}
