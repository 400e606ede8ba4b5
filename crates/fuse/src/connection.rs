//! The connection to the kernel, used besides the session threads: shows pending requests, refuses them while all session
//! threads are stuck; the rings, and the permission to use them.

pub(crate) mod pending;
pub(crate) mod rescue;
pub(crate) mod ring_permission;
pub(crate) mod rings;
pub(crate) mod serving_thread;

/// The largest write that the kernel may send, in bytes. The mount is read-only, so none ever comes.
pub(crate) const WRITE_BYTES_MAX: u32 = 4096;

/// The largest read that the kernel may send, in bytes.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;

/// The size of request buffers in bytes: room for a `BATCH_FORGET` of thousands of nodes.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
