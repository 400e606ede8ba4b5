//! Which inode each of the kernel's node numbers means.

use floe_fuse_wire::ROOT_NODE;
use floe_image::Nid;

/// Stands for the inode 0 as a node, as 0 means none to the kernel, and 1 the root.
const ALIAS_OF_0: u64 = u64::MAX - 1;

/// Maps the kernel's node numbers to inodes: the node number is the nid, except that the root is number one. Nothing has to be
/// remembered about lookups, and a number that the kernel was never given is an error of the format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeNumbers {
    root: Nid,
}

impl NodeNumbers {
    /// The numbers of a file system with this root.
    pub(crate) fn new(root: Nid) -> Self {
        Self { root }
    }

    /// The inode that a node number means.
    pub(crate) fn nid(self, node: u64) -> Nid {
        match node {
            ROOT_NODE => self.root,
            // No format has inodes there: both find an inode by its place in the image.
            ALIAS_OF_0.. => Nid(node - ALIAS_OF_0),
            node => Nid(node),
        }
    }

    /// The node number of an inode.
    pub(crate) fn node(self, nid: Nid) -> u64 {
        match nid.0 {
            _ if nid == self.root => ROOT_NODE,
            0 | ROOT_NODE => ALIAS_OF_0 + nid.0,
            number => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inode_has_a_node_of_its_own() {
        for root in [0, 1, 36, 1 << 47] {
            let numbers = NodeNumbers::new(Nid(root));
            assert_eq!((numbers.node(Nid(root)), numbers.nid(ROOT_NODE)), (ROOT_NODE, Nid(root)));
            let mut nodes = Vec::new();
            for nid in [0, 1, 2, 36, 1 << 40, 1 << 47, (1 << 63) | 5] {
                let node = numbers.node(Nid(nid));
                assert_eq!(numbers.nid(node), Nid(nid), "root {root}");
                assert!(node != 0 && !nodes.contains(&node), "{nid}, root {root}");
                nodes.push(node);
            }
        }
    }
}
