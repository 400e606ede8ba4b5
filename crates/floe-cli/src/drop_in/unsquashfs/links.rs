//! Follows symbolic links in the names on the command line.

use floe::{Error, FileType, Image, Nid};

/// The maximum number of links that one name leads through.
const LINKS_MAX: usize = 256;

/// A way from the root of an image to an inode, which leads through no link.
#[derive(Clone, Default)]
pub(super) struct Way {
    /// The names and their inodes.
    steps: Vec<(Vec<u8>, Nid)>,
}

impl Way {
    /// The inode to which it leads.
    pub(super) fn nid(&self, image: &Image) -> Nid {
        self.steps.last().map_or_else(|| image.root(), |(_, nid)| *nid)
    }

    pub(super) fn path(&self) -> Vec<u8> {
        self.steps.iter().flat_map(|(name, _)| [b"/", &name[..]].concat()).collect()
    }

    /// One step further.
    pub(super) fn below(mut self, name: Vec<u8>, nid: Nid) -> Self {
        self.steps.push((name, nid));
        self
    }

    /// One step back; `None` at the root.
    pub(super) fn back(mut self) -> Option<Self> {
        self.steps.pop().map(|_| self)
    }
}

/// Follows a path from `way` on, and all links on it. Adds the paths of the links to `links`.
///
/// Links lead only to places inside the image: a target that begins with a slash, or that leads above the root, is not
/// followed.
///
/// # Errors
/// A message: the path leads to nothing, or the image cannot be read.
pub(super) fn follow(image: &Image, mut way: Way, path: &[u8], links: &mut Vec<Vec<u8>>) -> Result<Way, String> {
    let file_system = image.file_system();
    let unresolved = || "can't be resolved".to_owned();
    let mut links_left = LINKS_MAX;
    // The names that still have to be looked up, the last one first.
    let mut rest = reversed(path);
    while let Some(name) = rest.pop() {
        if name == b".." {
            way = way.back().ok_or_else(unresolved)?;
            continue;
        }
        let found = match file_system.lookup(way.nid(image), &name) {
            Err(Error::WrongType { .. }) => None,
            found => found.map_err(|error| error.to_string())?,
        };
        let found = found.ok_or_else(unresolved)?;
        way = way.below(name, found);
        if image.attr(found).map_err(|error| error.to_string())?.file_type != FileType::Symlink {
            continue;
        }
        links.push(way.path());
        links_left = links_left.checked_sub(1).ok_or_else(|| format!("{}: too many levels of links", unresolved()))?;
        let target = file_system.read_link(found).map_err(|error| error.to_string())?;
        if target.starts_with(b"/") {
            return Err(unresolved());
        }
        way = way.back().unwrap_or_default();
        rest.extend(reversed(&target));
    }
    Ok(way)
}

/// The names of a path, the last one first.
fn reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect()
}
