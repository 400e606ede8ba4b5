//! Finds the selected parts of an image.

use super::Parts;
use crate::{Image, Nid, PathError};

/// A part of an image, with the names that lead to it from the root. No name leads through a link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Selected {
    pub(super) names: Vec<Vec<u8>>,
    /// The inodes of those names, one for each.
    pub(super) nids: Vec<Nid>,
}

/// Resolves the selected parts. If the parts include everything below them, no result lies within another.
pub(super) fn select(image: &Image, root: Nid, parts: Parts<'_>) -> Result<Vec<Selected>, PathError> {
    let (Parts::Below(paths) | Parts::Only(paths)) = parts else {
        return Ok(vec![Selected { names: Vec::new(), nids: Vec::new() }]);
    };
    let mut selection = Vec::new();
    for path in paths {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                names.pop();
            } else {
                names.push(name.to_vec());
            }
        }
        let mut nids = Vec::new();
        let mut nid = root;
        for (index, name) in names.iter().enumerate() {
            let told = || names[..=index].iter().flat_map(|name| [b"/", name.as_slice()].concat()).collect();
            let found = match image.file_system().lookup(nid, name) {
                Err(floe_image::Error::WrongType { .. }) => None,
                other => other?,
            };
            nid = found.ok_or_else(|| PathError::NotFound { path: told() })?;
            nids.push(nid);
        }
        selection.push(Selected { names, nids });
    }
    selection.sort();
    // In sorted order, a part comes after the parts that contain it.
    let is_only = matches!(parts, Parts::Only(_));
    selection.dedup_by(
        |later, earlier| {
            if is_only { later.names == earlier.names } else { later.names.starts_with(&earlier.names) }
        },
    );
    Ok(selection)
}
