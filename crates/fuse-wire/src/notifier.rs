//! Unsolicited messages to the kernel.

use std::io::{self, IoSlice};

use zerocopy::{Immutable, IntoBytes};

use crate::{
    Channel, Errno,
    abi::{NotifyInvalEntryOut, NotifyStoreOut, OutHeader},
};

const INVAL_ENTRY: i32 = 3;
const STORE: i32 = 4;
const RESEND: i32 = 7;

/// Sends those unsolicited messages to the kernel that servers of immutable files need. A thread must not send one about a node for which it is serving a request:
/// the kernel may wait for a lock that it holds until that request is answered.
///
/// All messages fail with `ENOENT` if the kernel does not know the node.
#[derive(Clone, Debug)]
pub struct Notifier {
    channel: Channel,
}

impl Notifier {
    /// Creates a notifier for the connection of a channel.
    pub fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Invalidates the cached entry of a name in a directory, including a negative entry.
    ///
    /// # Errors
    /// The kernel does not know the directory or the name, or the connection has ended.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let namelen = length(name)?;
        self.send(INVAL_ENTRY, &NotifyInvalEntryOut { parent, namelen, flags: 0 }, [name, &[0]])
    }

    /// Stores bytes of a file in the kernel's page cache.
    ///
    /// # Errors
    /// The kernel does not know the node or has no memory, or the connection has ended.
    pub fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let size = length(bytes)?;
        self.send(STORE, &NotifyStoreOut { nodeid: node, offset, size, padding: 0 }, [bytes])
    }

    /// Makes the kernel resend requests that were received but not answered, for a server that takes over a connection.
    /// Requires [`InitFlags::HAS_RESEND`](crate::InitFlags::HAS_RESEND).
    ///
    /// # Errors
    /// The connection has ended.
    pub fn resend(&self) -> io::Result<()> {
        self.send(RESEND, &[0u8; 0], [])
    }

    fn send<const COUNT: usize>(
        &self,
        code: i32,
        message: &(impl IntoBytes + Immutable + ?Sized),
        rest: [&[u8]; COUNT],
    ) -> io::Result<()> {
        let mut len = size_of::<OutHeader>() + size_of_val(message);
        let mut slices = [IoSlice::new(&[]); 4];
        slices[1] = IoSlice::new(message.as_bytes());
        for (slice, piece) in slices[2..].iter_mut().zip(rest) {
            *slice = IoSlice::new(piece);
            len += piece.len();
        }
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        // An unsolicited message has the number 0, and its code in place of an error.
        let header = OutHeader { len, error: code, unique: 0 };
        slices[0] = IoSlice::new(header.as_bytes());
        Ok(self.channel.send(&slices)?)
    }
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| Errno::INVAL.into())
}
