//! Checks the names of a directory before they are created.

use std::collections::HashSet;

use crate::{Image, Nid};

/// Checks the names of one directory: no name occurs twice or leads out of it.
#[derive(Default)]
pub(super) struct Names {
    last: Vec<u8>,
    /// All names so far; collected only after the first name that is out of order.
    seen: Option<HashSet<Vec<u8>>>,
}

impl Names {
    /// Returns why `name` must not be created in `directory`, or `None` if it may. The caller passes names in the order
    /// of the image.
    pub(super) fn refuse(&mut self, image: &Image, directory: Nid, name: &[u8]) -> Option<&'static str> {
        if name.is_empty() || name == b"." || name == b".." {
            return Some("empty name, or a name of dots");
        }
        if name.iter().any(|byte| matches!(byte, b'/' | b'\0')) {
            return Some("name with a slash or a NUL");
        }
        if let Some(seen) = &mut self.seen {
            return (!seen.insert(name.to_vec())).then_some("name that occurs twice in its directory");
        }
        if self.last.is_empty() || self.last.as_slice() < name {
            self.last.clear();
            self.last.extend_from_slice(name);
            return None;
        }
        // The names are not sorted, so from here on all names are remembered. The earlier ones are read again, once.
        let before = image.read_dir(directory).map_while(|entry| entry.ok().map(|entry| entry.name));
        let mut seen = HashSet::new();
        for earlier in before {
            let is_last = earlier == self.last;
            seen.insert(earlier);
            if is_last {
                break;
            }
        }
        let is_new = seen.insert(name.to_vec());
        self.seen = Some(seen);
        (!is_new).then_some("name that occurs twice in its directory")
    }
}
