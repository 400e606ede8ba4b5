//! Overlayfs metadata in a layer: whiteouts, which are device nodes with number 0, and xattrs.

use floe_image::{DeviceNumber, FileType};

use crate::tree::{Body, Node, NodeId, Tree};

/// The xattr of a directory that hides its counterparts in lower layers.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// The xattr that makes overlayfs look for whiteouts when it lists a directory.
const ORIGIN: &[u8] = b"trusted.overlay.origin";

/// The handling of overlayfs metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverlayMarks {
    /// Keep it unchanged.
    #[default]
    Keep,
    /// Mark directories with whiteouts by the xattr that makes overlayfs look for them.
    MarkOrigins,
    /// Drop whiteouts and the xattrs of opaque directories.
    Strip,
}

impl OverlayMarks {
    /// Applies the choice to the tree.
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
