//! The connection to the kernel, beside the threads that serve it: pending requests, and refusals while all session
//! threads are stuck.

pub(crate) mod pending;
pub(crate) mod rescue;
pub(crate) mod serving_thread;

/// The largest write that the kernel may send. Nothing is ever written.
pub(crate) const WRITE_BYTES_MAX: u32 = 4096;

/// The largest read that the kernel may send.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;

/// How long requests may be: room for thousands of forgotten nodes in one.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
