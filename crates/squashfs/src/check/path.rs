//! Paths of directories, kept as one name each.

/// Which directory's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathId(usize);

/// The paths of the directories that were reached.
#[derive(Default)]
pub(super) struct Paths {
    names: Vec<(Option<PathId>, Box<[u8]>)>,
}

impl Paths {
    /// Adds what `parent` has under `name`; without a parent, the root.
    pub(super) fn add(&mut self, parent: Option<PathId>, name: &[u8]) -> PathId {
        self.names.push((parent, name.into()));
        PathId(self.names.len().saturating_sub(1))
    }

    /// The whole path, beginning with `/`.
    pub(super) fn path(&self, id: PathId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut next = Some(id);
        // A parent was added before its children, so that this ends.
        while let Some((parent, name)) = next.and_then(|id| self.names.get(id.0)) {
            names.push(name);
            next = *parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev().filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root() {
        let mut paths = Paths::default();
        let root = paths.add(None, b"");
        let one = paths.add(Some(root), b"one");
        let two = paths.add(Some(one), b"two");
        for (id, expected) in [(root, &b"/"[..]), (one, b"/one"), (two, b"/one/two")] {
            assert_eq!(paths.path(id), expected);
        }
    }
}
