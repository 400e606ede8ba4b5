//! Follows symbolic links in the names on the command line.

use floe::{Error, FileType, Image, Nid};

/// The maximum number of links that one name leads through.
const LINKS_MAX: usize = 256;

/// The paths that a name needs: of each link on its way, and of what it leads to.
///
/// Links lead only to places inside the image: a target that begins with a slash, or that leads above the root, is not
/// followed.
///
/// # Errors
/// A message: the name leads to nothing, or the image cannot be read.
pub(super) fn follow(image: &Image, name: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let file_system = image.file_system();
    let mut paths = Vec::new();
    // The names that led here from the root, with their inodes.
    let mut here: Vec<(Vec<u8>, Nid)> = Vec::new();
    // The names that still have to be looked up, the last one first.
    let mut rest = reversed(name);
    let unresolved = || format!("Extract filename {} can't be resolved", name.escape_ascii());
    while let Some(name) = rest.pop() {
        let nid = here.last().map_or_else(|| image.root(), |(_, nid)| *nid);
        if name == b".." {
            here.pop().ok_or_else(unresolved)?;
            continue;
        }
        let found = match file_system.lookup(nid, &name) {
            Err(Error::WrongType { .. }) => None,
            found => found.map_err(|error| error.to_string())?,
        };
        let found = found.ok_or_else(unresolved)?;
        here.push((name, found));
        if image.attr(found).map_err(|error| error.to_string())?.file_type != FileType::Symlink {
            continue;
        }
        paths.push(path_of(&here));
        if paths.len() > LINKS_MAX {
            return Err(format!("{}: too many levels of symbolic links", unresolved()));
        }
        let target = file_system.read_link(found).map_err(|error| error.to_string())?;
        if target.starts_with(b"/") {
            return Err(unresolved());
        }
        here.pop();
        rest.extend(reversed(&target));
    }
    paths.push(path_of(&here));
    Ok(paths)
}

/// The names of a path, the last one first.
fn reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect()
}

fn path_of(names: &[(Vec<u8>, Nid)]) -> Vec<u8> {
    names.iter().flat_map(|(name, _)| [b"/", &name[..]].concat()).collect()
}
