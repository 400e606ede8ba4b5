//! The sink that stores prefetched bytes in the kernel's page cache of a mount.

use std::sync::Arc;

use floe_engine::{Sink, machine_page_bytes};
use floe_fuse_wire::Notifier;
use floe_image::{FileSystem, Nid};

use crate::inodes::served::Served;

/// The kernel's page cache of a mount, as a sink for prefetched bytes.
pub(crate) struct KernelPages {
    pub(crate) notifier: Notifier,
    pub(crate) served: Arc<Served>,
    pub(crate) file_system: Arc<dyn FileSystem>,
}

impl Sink for KernelPages {
    /// Stores all pages except the last page of the file, unless `bytes` is the whole file. With folios of several
    /// pages, Linux marks the whole folio as read after a store that ends with the file. If a read of that folio had
    /// failed before, its pages before the store would then count as read. A store of the whole file has no such pages.
    fn push(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        let Ok(attr) = self.file_system.attr(nid) else { return 0 };
        let is_whole = offset == 0 && bytes.len() as u64 == attr.size;
        let len_max = if is_whole { attr.size } else { len_before_last_page(attr.size, offset, self.page_bytes()) };
        let len = len_max.min(bytes.len() as u64) as usize;
        // The kernel rejects a store for an inode that it has dropped meanwhile.
        let node = self.served.nodes.node(nid);
        let is_stored = len > 0 && self.notifier.store(node, offset, &bytes[..len]).is_ok();
        if is_stored { len } else { 0 }
    }

    fn page_bytes(&self) -> u64 {
        machine_page_bytes() as u64
    }
}

/// The number of bytes from `offset` to the last page of a file of `size` bytes.
fn len_before_last_page(size: u64, offset: u64, page_bytes: u64) -> u64 {
    let last_page = size.saturating_sub(1) / page_bytes * page_bytes;
    last_page.saturating_sub(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_is_left_out() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for (size, offset, len) in [
                (0, 0, 0),
                (1, 0, 0),
                (page, 0, 0),
                (page + 1, 0, page),
                (2 * page, 0, page),
                (2 * page + 1, page, page),
                (2 * page, 2 * page, 0),
            ] {
                assert_eq!(len_before_last_page(size, offset, page), len, "{size} {offset}, pages of {page}");
            }
        }
    }
}
