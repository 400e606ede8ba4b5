//! Directory entries in replies.

use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut};

/// The alignment of entries, in bytes.
const ALIGNMENT: usize = 8;

/// The most bytes that are reserved for a reply before its length is known.
const RESERVED_BYTES_MAX: usize = 64 << 10;

/// A directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'name> {
    /// The inode number that `readdir` shows.
    pub inode_number: u64,
    /// The offset from which to continue after this entry.
    pub next: u64,
    /// The type as in the upper four bits of a mode (`DT_*`).
    pub kind: u32,
    /// The name: not empty; SquashFS allows up to 256 bytes, EROFS up to 255.
    pub name: &'name [u8],
}

/// The entries in a reply to READDIR or READDIRPLUS.
#[derive(Debug)]
pub struct DirectoryEntries {
    bytes: Vec<u8>,
    len_max: usize,
}

impl DirectoryEntries {
    /// Creates an empty list for a reply of at most `len_max` bytes.
    pub fn new(len_max: usize) -> Self {
        Self { bytes: Vec::with_capacity(len_max.min(RESERVED_BYTES_MAX)), len_max }
    }

    /// Adds an entry to a reply to READDIR. Returns false if there is no room.
    #[must_use]
    pub fn add(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.push(&[], entry)
    }

    /// Adds an entry to a reply to READDIRPLUS. Returns false if there is no room. If `node.nodeid` is 0, the kernel
    /// shows the entry but creates no node, so it will not send FORGET for one.
    #[must_use]
    pub fn add_with_node(&mut self, entry: &DirectoryEntry<'_>, node: &EntryOut) -> bool {
        self.push(node.as_bytes(), entry)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes of the reply.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, node: &[u8], entry: &DirectoryEntry<'_>) -> bool {
        let len = node.len() + size_of::<Dirent>() + entry.name.len();
        let end = (self.bytes.len() + len).next_multiple_of(ALIGNMENT);
        if end > self.len_max {
            return false;
        }
        // A name of more than 4 GiB would have failed the check above.
        let namelen = entry.name.len() as u32;
        let dirent = Dirent { ino: entry.inode_number, off: entry.next, namelen, r#type: entry.kind };
        self.bytes.extend_from_slice(node);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }
}
