//! The kernel's page cache of a mount.

use std::sync::Arc;

use floe_engine::{PAGE_BYTES, PageCache};
use floe_image::{FileSystem, Nid};
use fuser::{INodeNo, Notifier};

use crate::served::Served;

/// The kernel's page cache of a mount, which takes bytes that nobody asked for yet.
pub(crate) struct KernelPages {
    pub(crate) notifier: Notifier,
    pub(crate) served: Arc<Served>,
    pub(crate) file_system: Arc<dyn FileSystem>,
}

impl PageCache for KernelPages {
    /// All but the file's last page, unless all of the file is given. Where FUSE has folios of several pages, Linux took a
    /// store that ends where the file ends for all of its folio: if a read had failed there, what is in it before the
    /// store would be taken for read. A store from the file's beginning on has nothing before it.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> bool {
        let Ok(attr) = self.file_system.attr(nid) else { return false };
        let is_whole = offset == 0 && bytes.len() as u64 == attr.size;
        let len_max = if is_whole { attr.size } else { len_before_last_page(attr.size, offset) };
        let len = len_max.min(bytes.len() as u64);
        // The kernel refuses what it does not know: a file that it has forgotten meanwhile.
        let node = self.served.nodes.node_of(nid);
        len > 0 && node.is_ok_and(|node| self.notifier.store(INodeNo(node), offset, &bytes[..len as usize]).is_ok())
    }
}

/// How many bytes there are from `offset` to the last page of a file of so many bytes.
fn len_before_last_page(size: u64, offset: u64) -> u64 {
    let last_page = size.saturating_sub(1) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    last_page.saturating_sub(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_is_left_out() {
        let cases = [(0, 0, 0), (1, 0, 0), (4096, 0, 0), (4097, 0, 4096), (8192, 0, 4096), (8193, 4096, 4096)];
        for (size, offset, len) in cases {
            assert_eq!(len_before_last_page(size, offset), len, "{size} {offset}");
        }
        assert_eq!(len_before_last_page(8192, 8192), 0);
    }
}
