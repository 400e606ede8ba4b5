//! Whether the names of a directory may be made.

use std::collections::HashSet;

use crate::{Image, Nid};

/// Watches over the names of one directory: none may come twice or lead elsewhere.
#[derive(Default)]
pub(super) struct Names {
    last: Vec<u8>,
    /// All names so far; only kept from the first that is out of order on.
    seen: Option<HashSet<Vec<u8>>>,
}

impl Names {
    /// Why `name` may not be made in `directory`, whose names came here in the order of the image; `None` if it may.
    pub(super) fn refuse(&mut self, image: &Image, directory: Nid, name: &[u8]) -> Option<&'static str> {
        if name.is_empty() || name == b"." || name == b".." {
            return Some("name that is empty or made of dots");
        }
        if name.iter().any(|byte| matches!(byte, b'/' | b'\0')) {
            return Some("name with a slash or a NUL in it");
        }
        if let Some(seen) = &mut self.seen {
            return (!seen.insert(name.to_vec())).then_some("name that stands twice in its directory");
        }
        if self.last.is_empty() || self.last.as_slice() < name {
            self.last.clear();
            self.last.extend_from_slice(name);
            return None;
        }
        // Out of order: from here on all names are compared. Those before are read again, for once.
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
        (!is_new).then_some("name that stands twice in its directory")
    }
}
