//! An open image: the state that all reads share.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use floe_image::{BlockReader, Nid, Result};

use super::{inode::Inode, layout::DataMap, parameters::Parameters, window::Metadata};

/// An open image with the reader of its metadata.
pub(super) struct Volume {
    pub(super) reader: Arc<dyn BlockReader>,
    pub(super) parts: Arc<Parts>,
}

/// The state of an open image that does not depend on the reader.
pub(super) struct Parts {
    pub(super) parameters: Parameters,
    /// The inode that contains compressed metadata.
    pub(super) metabox: OnceLock<Special>,
    /// The inode that contains fragments.
    pub(super) packed: OnceLock<Special>,
}

/// An inode that holds data or metadata of other inodes. Almost every access needs it, so it stays in memory.
#[derive(Debug)]
pub(super) struct Special {
    pub(super) inode: Inode,
    map: OnceLock<DataMap>,
}

impl Special {
    /// Keeps an inode.
    pub(super) fn new(inode: Inode) -> Self {
        Self { inode, map: OnceLock::new() }
    }

    /// The map of its data.
    ///
    /// # Errors
    /// As for [`DataMap::read`].
    pub(super) fn map(&self, metadata: &dyn Metadata) -> Result<DataMap> {
        match self.map.get() {
            Some(map) => Ok(*map),
            None => {
                let map = DataMap::read(metadata, &self.inode)?;
                Ok(*self.map.get_or_init(|| map))
            }
        }
    }
}

impl Volume {
    /// Combines the state with a reader.
    pub(super) fn of(parts: Arc<Parts>, reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, parts }
    }

    /// The same image, read by another reader.
    pub(super) fn with_reader(&self, reader: Arc<dyn BlockReader>) -> Self {
        Self::of(Arc::clone(&self.parts), reader)
    }

    /// The special inode `nid`, if it is one.
    pub(super) fn special(&self, nid: Nid) -> Option<&Special> {
        [&self.metabox, &self.packed].into_iter().filter_map(OnceLock::get).find(|special| special.inode.nid == nid)
    }
}

impl Deref for Volume {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Deref for Parts {
    type Target = Parameters;

    fn deref(&self) -> &Parameters {
        &self.parameters
    }
}
