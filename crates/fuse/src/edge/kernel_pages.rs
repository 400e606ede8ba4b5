//! The kernel's page cache of a mount.

use std::sync::Arc;

use floe_engine::{Sink, machine_page_bytes};
use floe_fuse_wire::Notifier;
use floe_image::{FileSystem, Nid};

use crate::inodes::served::Served;

/// The kernel's page cache of a mount, which takes bytes that nobody asked for yet.
pub(crate) struct KernelPages {
    pub(crate) notifier: Notifier,
    pub(crate) served: Arc<Served>,
    pub(crate) file_system: Arc<dyn FileSystem>,
}

impl Sink for KernelPages {
    /// All but the file's last page, unless all of the file is given. Where FUSE has folios of several pages, Linux took a
    /// store that ends where the file ends for all of its folio: if a read had failed there, what is in it before the
    /// store would be taken for read. A store from the file's beginning on has nothing before it.
    fn store(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        let Ok(attr) = self.file_system.attr(nid) else { return 0 };
        let is_whole = offset == 0 && bytes.len() as u64 == attr.size;
        let len_max = if is_whole { attr.size } else { len_before_last_page(attr.size, offset, self.page_bytes()) };
        let len = len_max.min(bytes.len() as u64) as usize;
        // The kernel refuses what it does not know: a file that it has forgotten meanwhile.
        let node = self.served.nodes.node(nid);
        let is_stored = len > 0 && self.notifier.store(node, offset, &bytes[..len]).is_ok();
        if is_stored { len } else { 0 }
    }

    fn page_bytes(&self) -> u64 {
        machine_page_bytes() as u64
    }
}

/// How many bytes there are from `offset` to the last page of a file of so many bytes.
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
