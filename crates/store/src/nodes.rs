//! The nodes of the directory that the kernel knows.

use std::collections::HashMap;

use floe_fuse_wire::ROOT_NODE;
use floe_remote_cache::Digest;

use crate::name::Reference;

/// A file or directory of the store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Node {
    /// The directory itself.
    Root,
    /// The directory of an image.
    Image(Reference),
    /// The directory of a layer.
    Layer(Reference, Digest),
    /// A file of a layer.
    File(Reference, Digest, LayerFile),
    /// The directory of layers by diff IDs.
    Contents,
    /// The layers whose diff IDs begin with these digits.
    Prefix([u8; 2]),
    /// A layer by its diff ID.
    Content(Digest),
}

/// A file in the directory of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LayerFile {
    /// A symbolic link to the tree.
    Diff,
    /// The description.
    Info,
    /// The bytes of the layer.
    Blob,
}

impl LayerFile {
    pub(crate) const ALL: [Self; 3] = [Self::Diff, Self::Info, Self::Blob];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Diff => "diff",
            Self::Info => "info",
            Self::Blob => "blob",
        }
    }

    pub(crate) fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name().as_bytes() == name)
    }
}

/// The numbers of nodes. A node has the same number as long as the kernel knows it.
#[derive(Debug)]
pub(crate) struct Nodes {
    numbers: HashMap<Node, u64>,
    nodes: HashMap<u64, Known>,
    next: u64,
}

#[derive(Debug)]
struct Known {
    node: Node,
    /// How many replies with the node the kernel has not forgotten.
    lookups: u64,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let root = Known { node: Node::Root, lookups: 1 };
        let (numbers, nodes) = (HashMap::from([(Node::Root, ROOT_NODE)]), HashMap::from([(ROOT_NODE, root)]));
        Self { numbers, nodes, next: ROOT_NODE + 1 }
    }

    /// The node with a number.
    pub(crate) fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(&number).map(|known| &known.node)
    }

    /// The number of a node, for a reply to a lookup.
    pub(crate) fn look_up(&mut self, node: Node) -> u64 {
        if let Some(number) = self.numbers.get(&node) {
            if let Some(known) = self.nodes.get_mut(number) {
                known.lookups += 1;
            }
            return *number;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(node.clone(), number);
        self.nodes.insert(number, Known { node, lookups: 1 });
        number
    }

    /// Notes that the kernel has forgotten replies with a node.
    pub(crate) fn forget(&mut self, number: u64, lookups: u64) {
        if number == ROOT_NODE {
            return;
        }
        let Some(known) = self.nodes.get_mut(&number) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0
            && let Some(known) = self.nodes.remove(&number)
        {
            self.numbers.remove(&known.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_live_until_they_are_forgotten() {
        let mut nodes = Nodes::new();
        let image = || Node::Image(Reference::new("host/app:v1").expect("a reference"));
        let number = nodes.look_up(image());
        assert_eq!((nodes.look_up(image()), nodes.node(number)), (number, Some(&image())));
        nodes.forget(number, 1);
        assert_eq!(nodes.node(number), Some(&image()));
        nodes.forget(number, 1);
        assert_eq!(nodes.node(number), None);
        assert_ne!(nodes.look_up(image()), number, "a number is not used again");
        nodes.forget(ROOT_NODE, 99);
        nodes.forget(77, 1);
        assert_eq!(nodes.node(ROOT_NODE), Some(&Node::Root));
    }
}
