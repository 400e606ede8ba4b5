//! Members of archives that are made by hand.

use tar::{EntryType, Header};

/// The header of a member in the format of ustar. The names are stored unchanged.
pub(crate) fn header(kind: EntryType, name: &str, link: &str, len: usize) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_600_000_000);
    header.set_size(len as u64);
    header.set_cksum();
    header
}

/// A member with this content, padded to whole blocks.
pub(crate) fn member(name: &str, kind: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = [header(EntryType::new(kind), name, "", data.len()).as_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
