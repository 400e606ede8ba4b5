//! What overlayfs reads in a layer: whiteouts, which are devices with the number 0, and its attributes.

use floe_image::{DeviceNumber, FileType};

use crate::tree::{Body, Node, NodeId, Tree};

/// The attribute of a directory that hides those of lower layers.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// The attribute of a directory in which overlayfs looks for whiteouts when it lists it.
const ORIGIN: &[u8] = b"trusted.overlay.origin";

/// What becomes of what only overlayfs understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverlayMarks {
    /// It stays as it is.
    #[default]
    Keep,
    /// Directories with whiteouts get the attribute by which overlayfs knows that it has to look for them.
    MarkOrigins,
    /// Whiteouts, and the attributes of opaque directories, are left out.
    Strip,
}

impl OverlayMarks {
    /// Changes the tree accordingly.
    pub(crate) fn put(self, tree: &mut Tree) {
        if self == Self::Keep {
            return;
        }
        let nodes: Vec<NodeId> = tree.all().collect();
        for id in nodes {
            let whiteouts = tree.entries(id).filter(|(_, node)| is_whiteout(tree.node(*node)));
            let whiteouts: Vec<Box<[u8]>> = whiteouts.map(|(name, _)| name.into()).collect();
            match self {
                Self::MarkOrigins if !whiteouts.is_empty() => {
                    let xattrs = &mut tree.node_mut(id).xattrs;
                    xattrs.retain(|(name, _)| **name != *ORIGIN);
                    xattrs.push((ORIGIN.into(), Box::default()));
                    xattrs.sort();
                }
                Self::Strip => {
                    whiteouts.iter().for_each(|name| tree.unlink(id, name));
                    tree.node_mut(id).xattrs.retain(|(name, _)| **name != *OPAQUE);
                }
                Self::Keep | Self::MarkOrigins => {}
            }
        }
    }
}

fn is_whiteout(node: &Node) -> bool {
    matches!(node.body, Body::Special(FileType::CharacterDevice, number) if number == DeviceNumber::default())
}
