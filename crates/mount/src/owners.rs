//! The owners that options give to the files of a mount.

use std::sync::Arc;

use floe_image::{Attr, DerivedFileSystem, FileSystem, Nid};

use floe_front::{NO_GROUP, OWNER_ALONE};

/// The owner of all files of a mount, instead of the image's owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owners {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The only user whom the root directory admits, and who owns it.
    pub only_user: Option<u32>,
}

impl Owners {
    /// Wraps `file_system` with these owners.
    pub(crate) fn of(self, file_system: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        if self == Self::default() {
            return file_system;
        }
        let root = file_system.root();
        Arc::new(DerivedFileSystem::with_attrs(file_system, move |attr| self.replace(attr, root)))
    }

    fn replace(self, attr: Attr, root: Nid) -> Attr {
        match self.only_user.filter(|_| attr.nid == root) {
            Some(uid) => Attr { uid, gid: NO_GROUP, permissions: OWNER_ALONE, ..attr },
            None => Attr { uid: self.uid.unwrap_or(attr.uid), gid: self.gid.unwrap_or(attr.gid), ..attr },
        }
    }
}
