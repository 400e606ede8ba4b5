//! The tree of nodes for an image, and the sources of their content.

pub(crate) mod content;
pub(crate) mod entries;
pub(crate) mod listed;
pub(crate) mod run;
pub(crate) mod source_image;
pub(crate) mod source_root;
pub(crate) mod xattrs;

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use floe_erofs::AlgorithmConfiguration;
use floe_image::{DIRECTORY_DEPTH_MAX, DeviceNumber, FileType, Timestamp};

use content::{Content, Referrer};
use entries::{Entries, Names};
use xattrs::XattrSet;

use crate::error::{Error, Result};

/// The maximum number of nodes.
const NODES_MAX: usize = u32::MAX as usize;

/// The number of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NodeId(u32);

impl NodeId {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The index in a table with an entry for each node.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Metadata {
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
}

/// The type of an inode with its data.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Directory(Entries),
    File(Content),
    Symlink(Box<[u8]>),
    Special(FileType, DeviceNumber),
}

/// A future inode.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
    pub(crate) xattrs: XattrSet,
    pub(crate) body: Body,
}

impl Node {
    pub(crate) fn file_type(&self) -> FileType {
        match &self.body {
            Body::Directory(_) => FileType::Directory,
            Body::File(_) => FileType::Regular,
            Body::Symlink(_) => FileType::Symlink,
            Body::Special(file_type, _) => *file_type,
        }
    }
}

/// The tree: nodes by number, the root first. A node with several hard links is in several directories.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    names: Names,
    /// The xattrs of nodes, each set once.
    xattrs: HashSet<XattrSet>,
    /// Whether something was left out, because there was no number for it.
    is_full: bool,
    devices: Vec<ReferredDevice>,
}

/// The place of each node in an order.
#[derive(Debug)]
pub(crate) struct Places(Vec<u32>);

impl Places {
    /// The index of a node in the order; 0 for nodes without a name.
    pub(crate) fn of(&self, node: NodeId) -> usize {
        self.0[node.index()] as usize
    }
}

/// A file that is an extra device of the new image.
#[derive(Debug)]
pub(crate) struct ReferredDevice {
    pub(crate) path: PathBuf,
    /// Identifies it in the device table.
    pub(crate) tag: Vec<u8>,
    pub(crate) len: u64,
    /// The configurations of the pclusters to which files refer.
    pub(crate) configurations: Vec<AlgorithmConfiguration>,
    /// Whether some of them refer only to the beginning of a pcluster.
    pub(crate) has_partial_pclusters: bool,
}

/// A node in the order of [`Tree::in_order`], the tree order; its parent is the directory in which it was found first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedNode {
    pub(crate) node: NodeId,
    pub(crate) parent: NodeId,
    pub(crate) link_count: u32,
}

impl Tree {
    pub(crate) const ROOT: NodeId = NodeId(0);

    /// Creates a tree with a root without entries.
    pub(crate) fn new(metadata: Metadata) -> Self {
        let root = Node { metadata, xattrs: XattrSet::default(), body: Body::Directory(Entries::default()) };
        let names = Names::default();
        Self { nodes: vec![root], names, xattrs: HashSet::new(), is_full: false, devices: Vec::new() }
    }

    /// Fails if the tree has no room for all nodes or names that were added.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let too_large = || Error::Layout("there are too many files: their names may have 4 GiB".into());
        if self.is_full { Err(too_large()) } else { Ok(()) }
    }

    /// Adds an extra device. Its number is above 0.
    pub(crate) fn add_device(&mut self, device: ReferredDevice) -> Referrer {
        let path = Arc::new(device.path.clone());
        self.devices.push(device);
        Referrer { number: u16::try_from(self.devices.len()).unwrap_or(u16::MAX), path }
    }

    /// The extra device with this number.
    pub(crate) fn device_mut(&mut self, device: &Referrer) -> Option<&mut ReferredDevice> {
        self.devices.get_mut(usize::from(device.number).wrapping_sub(1))
    }

    /// The extra devices, by number from 1 on.
    pub(crate) fn devices(&self) -> &[ReferredDevice] {
        &self.devices
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// The content of a file.
    pub(crate) fn content(&self, ordered: &OrderedNode) -> Option<&Content> {
        match &self.node(ordered.node).body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// The number of nodes, including those without a name.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes, including those without a name.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }

    /// The index of each node in `order`.
    pub(crate) fn places(&self, order: &[OrderedNode]) -> Places {
        let mut places = vec![0; self.nodes.len()];
        for (place, ordered) in (0..).zip(order) {
            places[ordered.node.index()] = place;
        }
        Places(places)
    }

    /// The path of a node without a leading slash, by the name under which it was found first.
    pub(crate) fn path(&self, order: &[OrderedNode], node: NodeId) -> Vec<u8> {
        let mut parents = vec![Self::ROOT; self.nodes.len()];
        order.iter().for_each(|ordered| parents[ordered.node.index()] = ordered.parent);
        let (mut names, mut at) = (Vec::new(), node);
        while at != Self::ROOT {
            let parent = parents[at.index()];
            names.push(self.entries(parent).find(|(_, node)| *node == at).map_or(&[][..], |(name, _)| name));
            at = parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// A directory that is nested deeper than readers go.
    pub(crate) fn too_deep(&self, order: &[OrderedNode]) -> Option<NodeId> {
        let mut depths = vec![0; self.nodes.len()];
        order.iter().filter(|ordered| ordered.node != Self::ROOT).find_map(|ordered| {
            depths[ordered.node.index()] = depths[ordered.parent.index()] + 1;
            let is_directory = matches!(self.node(ordered.node).body, Body::Directory(_));
            (is_directory && depths[ordered.node.index()] >= DIRECTORY_DEPTH_MAX).then_some(ordered.node)
        })
    }

    /// Gives each hard link a node of its own.
    pub(crate) fn split_links(&mut self) {
        let mut seen = vec![false; self.nodes.len()];
        for directory in self.all() {
            let mut again = Vec::new();
            for (name, node) in self.entries(directory) {
                let is_directory = matches!(self.node(node).body, Body::Directory(_));
                if !is_directory && std::mem::replace(&mut seen[node.index()], true) {
                    again.push((Box::<[u8]>::from(name), node));
                }
            }
            for (name, node) in again {
                let copy = self.add(self.node(node).clone());
                self.link(directory, &name, copy);
            }
        }
    }

    /// Makes a directory the root. Entries outside it can no longer be reached.
    pub(crate) fn make_root(&mut self, directory: NodeId) {
        self.nodes.swap(Self::ROOT.index(), directory.index());
    }

    /// Adds a node without a name.
    pub(crate) fn add(&mut self, mut node: Node) -> NodeId {
        if !node.xattrs.is_empty() {
            match self.xattrs.get(&node.xattrs) {
                Some(known) => node.xattrs = known.clone(),
                None => _ = self.xattrs.insert(node.xattrs.clone()),
            }
        }
        if self.nodes.len() == NODES_MAX {
            self.is_full = true;
            return Self::ROOT;
        }
        self.nodes.push(node);
        NodeId::new(self.nodes.len() - 1)
    }

    /// Links a node under a name and replaces an existing entry. `directory` must be a directory.
    pub(crate) fn link(&mut self, directory: NodeId, name: &[u8], node: NodeId) {
        if let Body::Directory(entries) = &mut self.nodes[directory.index()].body {
            self.is_full |= !entries.set(&mut self.names, name, node);
        }
    }

    /// Removes a name, if it exists.
    pub(crate) fn unlink(&mut self, directory: NodeId, name: &[u8]) {
        if let Body::Directory(entries) = &mut self.nodes[directory.index()].body {
            entries.remove(&self.names, name);
        }
    }

    /// Removes all names of these nodes.
    pub(crate) fn remove(&mut self, nodes: &HashSet<NodeId>) {
        for node in &mut self.nodes {
            if let Body::Directory(entries) = &mut node.body {
                entries.retain(|node| !nodes.contains(&node));
            }
        }
    }

    /// Removes all entries of a directory.
    pub(crate) fn clear(&mut self, directory: NodeId) {
        if let Body::Directory(entries) = &mut self.nodes[directory.index()].body {
            entries.clear();
        }
    }

    /// The node with this name in a directory.
    pub(crate) fn lookup(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[directory.index()].body {
            Body::Directory(entries) => entries.node(&self.names, name),
            _ => None,
        }
    }

    /// The node at a path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<NodeId> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(Self::ROOT, |directory, name| self.lookup(directory, name))
    }

    /// The entries of a directory in the byte order of their names; none for other nodes.
    pub(crate) fn entries(&self, directory: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
        let entries = match &self.nodes[directory.index()].body {
            Body::Directory(entries) => Some(entries),
            _ => None,
        };
        entries.into_iter().flat_map(|entries| entries.iter(&self.names))
    }

    /// All named nodes, each once: the root, then the entries of each directory, with directories in depth-first order.
    pub(crate) fn in_order(&self) -> Vec<OrderedNode> {
        // The place of the root marks nodes that were not found yet: no directory has an entry for it.
        let mut places = vec![0u32; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        order.push(OrderedNode { node: Self::ROOT, parent: Self::ROOT, link_count: 2 });
        let mut open = vec![Self::ROOT];
        while let Some(directory) = open.pop() {
            let first_below = open.len();
            for (_, node) in self.entries(directory) {
                if places[node.index()] > 0 {
                    let known = &mut order[places[node.index()] as usize];
                    known.link_count = known.link_count.saturating_add(1);
                    continue;
                }
                places[node.index()] = u32::try_from(order.len()).unwrap_or(u32::MAX);
                let is_directory = matches!(self.node(node).body, Body::Directory(_));
                order.push(OrderedNode { node, parent: directory, link_count: if is_directory { 2 } else { 1 } });
                if is_directory {
                    open.push(node);
                    let parent = &mut order[places[directory.index()] as usize];
                    parent.link_count = parent.link_count.saturating_add(1);
                }
            }
            open[first_below..].reverse();
        }
        order
    }
}
