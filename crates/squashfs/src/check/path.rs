//! Paths of directories, stored as one name each.

/// The longest path in a finding. Longer paths cannot be opened, and make many findings slow to report.
const PATH_BYTES_MAX: usize = 4096;

/// Identifies the path of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathId(usize);

/// The paths of the directories reached so far.
#[derive(Default)]
pub(super) struct Paths {
    names: Vec<(Option<PathId>, Box<[u8]>)>,
}

impl Paths {
    /// Adds the entry `name` of `parent`; without a parent, the root.
    pub(super) fn add(&mut self, parent: Option<PathId>, name: &[u8]) -> PathId {
        self.names.push((parent, name.into()));
        PathId(self.names.len().saturating_sub(1))
    }

    /// The full path, starting with `/`; `None` if it is too long to report.
    pub(super) fn path(&self, id: PathId) -> Option<Vec<u8>> {
        let (mut names, mut len) = (Vec::new(), 0_usize);
        let mut next = Some(id);
        // A parent is added before its children, so the loop ends.
        while let Some((parent, name)) = next.and_then(|id| self.names.get(id.0)) {
            len = len.saturating_add(name.len()).saturating_add(1);
            if len > PATH_BYTES_MAX {
                return None;
            }
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
        Some(path)
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
            assert_eq!(paths.path(id).as_deref(), Some(expected));
        }
        let mut deep = two;
        for _ in 0..5000 {
            deep = paths.add(Some(deep), b"x");
        }
        assert_eq!(paths.path(deep), None);
    }
}
