//! The connection to the kernel, beside the session: its descriptors, pending requests, and refusals while all session
//! threads are stuck.

pub(crate) mod device_sys;
pub(crate) mod pending;
pub(crate) mod rescue;
pub(crate) mod serving_thread;

/// The largest write that the kernel may send. Nothing is ever written; but the kernel derives from it the largest read,
/// 256 pages.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The kernel wants room for the largest write before it gives any request out: its header and 1 MiB.
pub(crate) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;
