//! Finds the selected parts of an image.

use crate::{Image, Nid, PathError};

/// A part of an image, with the names that lead to it from the root. No name leads through a link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Selected {
    pub(super) names: Vec<Vec<u8>>,
    /// The inodes of those names, one for each.
    pub(super) nids: Vec<Nid>,
}

impl Selected {
    pub(super) const ROOT: Self = Self { names: Vec::new(), nids: Vec::new() };
}

/// Resolves paths. No result lies within another.
pub(super) fn select(image: &Image, root: Nid, paths: &[Vec<u8>]) -> Result<Vec<Selected>, PathError> {
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
    selection.dedup_by(|later, earlier| later.names.starts_with(&earlier.names));
    Ok(selection)
}
