//! The kernel's page cache of a mount.

use std::sync::Arc;

use floe_engine::PageCache;
use floe_image::Nid;
use fuser::{INodeNo, Notifier};

use crate::served::Served;

/// The kernel's page cache of a mount, which takes bytes that nobody asked for yet.
pub(crate) struct KernelPages {
    pub(crate) notifier: Notifier,
    pub(crate) served: Arc<Served>,
}

impl PageCache for KernelPages {
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> bool {
        // The kernel refuses what it does not know: a file that it has forgotten meanwhile.
        let node = self.served.nodes.node_of(nid);
        node.is_ok_and(|node| self.notifier.store(INodeNo(node), offset, bytes).is_ok())
    }
}
