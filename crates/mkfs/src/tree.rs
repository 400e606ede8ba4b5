//! The tree that goes into an image.

use std::collections::{BTreeMap, HashSet};

use floe_image::{DeviceNumber, FileType, Timestamp};

use crate::content::Content;

/// The number of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NodeId(usize);

impl NodeId {
    /// Its place in a table with an entry for each node.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// What an inode says besides its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Metadata {
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
}

/// The full name and the value of an extended attribute.
pub(crate) type Xattr = (Box<[u8]>, Box<[u8]>);

/// What an inode is.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    File(Content),
    Symlink(Vec<u8>),
    Special(FileType, DeviceNumber),
}

/// An inode to be.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
    /// Full names and values, in the order of the names.
    pub(crate) xattrs: Vec<Xattr>,
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

/// The tree: nodes by number, the root being the first. A node with several names is in several directories.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
}

/// A node in the order of the image: its parent is where it was first seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) node: NodeId,
    pub(crate) parent: NodeId,
    pub(crate) link_count: u32,
}

impl Tree {
    pub(crate) const ROOT: NodeId = NodeId(0);

    /// A tree of a root without entries.
    pub(crate) fn new(metadata: Metadata) -> Self {
        Self { nodes: vec![Node { metadata, xattrs: Vec::new(), body: Body::Directory(BTreeMap::new()) }] }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// The content of a file.
    pub(crate) fn content(&self, visit: &Visit) -> Option<&Content> {
        match &self.node(visit.node).body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// How many nodes there are, those among them that nothing names any more.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes, those among them that nothing names any more.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// Gives each name of what has several a node of its own.
    pub(crate) fn split_links(&mut self) {
        let mut seen = vec![false; self.nodes.len()];
        for directory in self.all() {
            let mut again = Vec::new();
            for (name, node) in self.entries(directory) {
                let is_directory = matches!(self.node(node).body, Body::Directory(_));
                if !is_directory && std::mem::replace(&mut seen[node.0], true) {
                    again.push((Box::<[u8]>::from(name), node));
                }
            }
            for (name, node) in again {
                let copy = self.add(self.node(node).clone());
                self.link(directory, &name, copy);
            }
        }
    }

    /// Adds a node that nothing names yet.
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Gives a node a name; what had it before loses it. `directory` must be one.
    pub(crate) fn link(&mut self, directory: NodeId, name: &[u8], node: NodeId) {
        if let Body::Directory(entries) = &mut self.nodes[directory.0].body {
            entries.insert(name.into(), node);
        }
    }

    /// Takes a name away, if it is there.
    pub(crate) fn unlink(&mut self, directory: NodeId, name: &[u8]) {
        if let Body::Directory(entries) = &mut self.nodes[directory.0].body {
            entries.remove(name);
        }
    }

    /// Takes all names of these nodes away.
    pub(crate) fn remove(&mut self, nodes: &HashSet<NodeId>) {
        for node in &mut self.nodes {
            if let Body::Directory(entries) = &mut node.body {
                entries.retain(|_, node| !nodes.contains(node));
            }
        }
    }

    /// Takes all names in a directory away.
    pub(crate) fn clear(&mut self, directory: NodeId) {
        if let Body::Directory(entries) = &mut self.nodes[directory.0].body {
            entries.clear();
        }
    }

    /// What has this name in a directory.
    pub(crate) fn lookup(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[directory.0].body {
            Body::Directory(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    /// The entries of a directory in the order of their names' bytes; of anything else none.
    pub(crate) fn entries(&self, directory: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
        let entries = match &self.nodes[directory.0].body {
            Body::Directory(entries) => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten().map(|(name, id)| (name.as_ref(), *id))
    }

    /// All nodes that have a name, each once: the root, then for each directory what is in it, directories in the order
    /// in which they were met going down first.
    pub(crate) fn in_order(&self) -> Vec<Visit> {
        let mut places: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut visits = vec![Visit { node: Self::ROOT, parent: Self::ROOT, link_count: 2 }];
        places[Self::ROOT.0] = Some(0);
        let mut open = vec![Self::ROOT];
        while let Some(directory) = open.pop() {
            let first_below = open.len();
            for (_, node) in self.entries(directory) {
                if let Some(place) = places[node.0] {
                    visits[place].link_count = visits[place].link_count.saturating_add(1);
                    continue;
                }
                places[node.0] = Some(visits.len());
                let is_directory = matches!(self.node(node).body, Body::Directory(_));
                visits.push(Visit { node, parent: directory, link_count: if is_directory { 2 } else { 1 } });
                if is_directory {
                    open.push(node);
                    if let Some(place) = places[directory.0] {
                        visits[place].link_count = visits[place].link_count.saturating_add(1);
                    }
                }
            }
            open[first_below..].reverse();
        }
        visits
    }
}
