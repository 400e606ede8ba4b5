//! Whiteouts of OCI layers and aufs, and the marks of overlayfs: device nodes with number 0, and xattrs.

use floe_image::{DeviceNumber, FileType, Timestamp};

use crate::{
    options::{OverlayMarks, Whiteouts},
    tree::{
        Body, Metadata, Node, NodeId, Tree,
        xattrs::{Xattr, XattrSet},
    },
};

/// The prefix of whiteouts.
const PREFIX: &[u8] = b".wh.";
/// The prefix of names that affect a whole directory, or aufs itself.
const DIRECTORY_PREFIX: &[u8] = b".wh..wh.";
/// The name that hides all entries of lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The xattr of an opaque directory in overlayfs, which hides its counterparts in lower layers.
const OVERLAY_OPAQUE: (&[u8], &[u8]) = (b"trusted.overlay.opaque", b"y");
/// The xattr that makes overlayfs look for whiteouts when it lists a directory.
pub(super) const OVERLAY_ORIGIN: &[u8] = b"trusted.overlay.origin";

/// The meaning of a special name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whiteout<'a> {
    /// Removes this entry of earlier layers.
    Entry(&'a [u8]),
    /// Removes all entries of earlier layers.
    Opaque,
    /// No meaning in an image.
    Nothing,
}

impl<'a> Whiteout<'a> {
    /// The meaning of a name; `None` for ordinary names.
    pub(crate) fn of(name: &'a [u8], whiteouts: Whiteouts) -> Option<Self> {
        if matches!(whiteouts, Whiteouts::Keep | Whiteouts::Merge) {
            return None;
        }
        let hidden = name.strip_prefix(PREFIX)?;
        Some(match hidden {
            _ if name == OPAQUE => Self::Opaque,
            _ if name.starts_with(DIRECTORY_PREFIX) => Self::Nothing,
            b"" | b"." | b".." => Self::Nothing,
            hidden => Self::Entry(hidden),
        })
    }

    /// Applies the whiteout to `directory`, which contains only entries of earlier layers.
    pub(crate) fn put(self, tree: &mut Tree, directory: NodeId, whiteouts: Whiteouts) {
        match (self, whiteouts) {
            (Self::Nothing, _) | (_, Whiteouts::Keep | Whiteouts::Merge) => {}
            (Self::Entry(name), Whiteouts::Apply) => tree.unlink(directory, name),
            (Self::Opaque, Whiteouts::Apply) => tree.clear(directory),
            (Self::Entry(name), Whiteouts::Overlay) => {
                let metadata = Metadata { permissions: 0, uid: 0, gid: 0, modified: Timestamp::default() };
                let body = Body::Special(FileType::CharacterDevice, DeviceNumber::default());
                let node = tree.add(Node { metadata, xattrs: XattrSet::default(), body });
                tree.link(directory, name, node);
            }
            (Self::Opaque, Whiteouts::Overlay) => {
                tree.clear(directory);
                put_opaque_mark(tree.node_mut(directory).xattrs.to_mut());
            }
        }
    }
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
                    let xattrs = tree.node_mut(id).xattrs.to_mut();
                    xattrs.retain(|(name, _)| **name != *OVERLAY_ORIGIN);
                    xattrs.push((OVERLAY_ORIGIN.into(), Box::default()));
                    xattrs.sort();
                }
                Self::Strip => {
                    whiteouts.iter().for_each(|name| tree.unlink(id, name));
                    let xattrs = &mut tree.node_mut(id).xattrs;
                    if xattrs.iter().any(|(name, _)| **name == *OVERLAY_OPAQUE.0) {
                        xattrs.to_mut().retain(|(name, _)| **name != *OVERLAY_OPAQUE.0);
                    }
                }
                Self::Keep | Self::MarkOrigins => {}
            }
        }
    }
}

/// Whether an inode is a whiteout of overlayfs.
pub(super) fn is_whiteout(node: &Node) -> bool {
    matches!(node.body, Body::Special(FileType::CharacterDevice, number) if number == DeviceNumber::default())
}

/// Marks a directory as an opaque one of overlayfs.
pub(super) fn put_opaque_mark(xattrs: &mut Vec<Xattr>) {
    xattrs.retain(|(name, _)| **name != *OVERLAY_OPAQUE.0);
    xattrs.push((OVERLAY_OPAQUE.0.into(), OVERLAY_OPAQUE.1.into()));
    xattrs.sort();
}

/// Whether an xattr marks an opaque directory of overlayfs.
pub(super) fn is_opaque_mark((name, value): &Xattr) -> bool {
    (&**name, &**value) == OVERLAY_OPAQUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiteout_names_are_recognised() {
        for (name, expected) in [
            ("name", None),
            (".wh.name", Some(Whiteout::Entry(b"name"))),
            (".wh..hidden", Some(Whiteout::Entry(b".hidden"))),
            (".wh..wh..opq", Some(Whiteout::Opaque)),
            (".wh..wh.plnk", Some(Whiteout::Nothing)),
            (".wh.", Some(Whiteout::Nothing)),
            (".wh..", Some(Whiteout::Nothing)),
            (".wh", None),
            ("x.wh.name", None),
        ] {
            assert_eq!(Whiteout::of(name.as_bytes(), Whiteouts::Apply), expected, "{name}");
            assert_eq!(Whiteout::of(name.as_bytes(), Whiteouts::Keep), None, "{name}");
        }
    }
}
