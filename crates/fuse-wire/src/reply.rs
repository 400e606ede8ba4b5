//! Replies to the kernel, also with directory entries.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::{
    Channel,
    abi::{Dirent, EntryOut, OutHeader},
    ring_core_sys::InSlot,
};

/// The kernel rejects error numbers from here on.
const ERRNO_END: i32 = 512;

/// The maximal number of pieces of a reply, besides its header.
const PIECES_MAX: usize = 7;

/// The reply to one request. Any thread may send it, exactly once; dropping it replies `EIO`.
#[derive(Debug)]
#[must_use = "a reply that is dropped answers EIO"]
pub struct Reply {
    /// Over which transport it goes.
    way: Way,
    unique: u64,
    /// Whether the kernel still expects the reply.
    is_owed: bool,
}

#[derive(Debug)]
enum Way {
    /// `/dev/fuse`. The reply counts as unanswered there if `is_counted`.
    Device { channel: Channel, is_counted: bool },
    /// A slot of a ring, until it is used.
    Slot(Option<InSlot>),
}

impl Reply {
    /// Creates the reply to a request with the number `unique`, received on `channel`.
    pub(crate) fn new(channel: Channel, unique: u64, is_owed: bool) -> Self {
        if is_owed {
            channel.note_request();
        }
        Self { way: Way::Device { channel, is_counted: is_owed }, unique, is_owed }
    }

    /// Creates the reply to a request with the number `unique` in a slot of a ring.
    pub(crate) fn in_slot(slot: InSlot, unique: u64) -> Self {
        Self { way: Way::Slot(Some(slot)), unique, is_owed: true }
    }

    /// The number of the request.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Replies without data.
    pub fn done(self) {
        self.pieces([]);
    }

    /// Replies with an error.
    pub fn refuse(mut self, errno: Errno) {
        self.send_error(errno);
    }

    /// Replies with a structure of the protocol.
    pub fn with<T: IntoBytes + Immutable>(self, structure: &T) {
        self.pieces([structure.as_bytes()]);
    }

    /// Replies with bytes.
    pub fn bytes(self, bytes: &[u8]) {
        self.pieces([bytes]);
    }

    /// Replies with the concatenation of pieces. The kernel copies each piece from its place.
    pub fn pieces<const COUNT: usize>(mut self, pieces: [&[u8]; COUNT]) {
        const { assert!(COUNT <= PIECES_MAX) };
        if !std::mem::replace(&mut self.is_owed, false) {
            return;
        }
        let channel = match &mut self.way {
            Way::Device { channel, .. } => channel,
            Way::Slot(place) => {
                let Some(slot) = place.take() else { return };
                if let Err(slot) = slot.send(self.unique, 0, &pieces) {
                    *place = Some(slot);
                    self.is_owed = true;
                    self.send_error(Errno::IO);
                }
                return;
            }
        };
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>() + size_of::<OutHeader>();
        let Ok(len) = u32::try_from(len) else { return self.send_error(Errno::IO) };
        let header = OutHeader { len, error: 0, unique: self.unique };
        let mut slices = [IoSlice::new(&[]); PIECES_MAX + 1];
        slices[0] = IoSlice::new(header.as_bytes());
        for (slice, piece) in slices[1..].iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        match channel.send(&slices[..=COUNT]) {
            // ENOENT: the caller was killed. ENODEV: the connection has ended. No one waits for the reply.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            // If the kernel rejects a reply, an error takes its place, so that the caller does not wait forever.
            Err(_) => {
                self.is_owed = true;
                self.send_error(Errno::IO);
            }
        }
    }

    fn send_error(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.is_owed, false) {
            return;
        }
        let number = errno.raw_os_error();
        let number = if (1..ERRNO_END).contains(&number) { number } else { Errno::IO.raw_os_error() };
        let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -number, unique: self.unique };
        // A failure means that no one waits, as above.
        match &mut self.way {
            Way::Device { channel, .. } => drop(channel.send(&[IoSlice::new(header.as_bytes())])),
            Way::Slot(place) => drop(place.take().map(|slot| slot.send(self.unique, -number, &[]))),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send_error(Errno::IO);
        if let Way::Device { channel, is_counted: true } = &self.way {
            channel.note_reply();
        }
    }
}

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
