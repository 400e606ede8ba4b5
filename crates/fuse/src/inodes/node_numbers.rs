//! The mapping between the kernel's node numbers and inodes.

use floe_fuse_wire::ROOT_NODE;
use floe_image::Nid;

/// The node number of inode 0; [`ALIAS_OF_0`] + 1 stands for inode 1. FUSE reserves 0 for "no node" and 1 for the root.
const ALIAS_OF_0: u64 = u64::MAX - 1;

/// Maps node numbers to inodes: the node number is the nid, except for the root, which is 1. Lookups need no state, and
/// a node number that the kernel was never given leads to an error of the format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeNumbers {
    root: Nid,
}

impl NodeNumbers {
    /// Creates the mapping of a file system with this root.
    pub(crate) fn new(root: Nid) -> Self {
        Self { root }
    }

    /// Returns the inode of a node number.
    pub(crate) fn nid(self, node: u64) -> Nid {
        match node {
            ROOT_NODE => self.root,
            // No format has inodes with such large numbers, because both formats compute the place of an inode from its
            // nid.
            ALIAS_OF_0.. => Nid(node - ALIAS_OF_0),
            node => Nid(node),
        }
    }

    /// Returns the node number of an inode.
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
