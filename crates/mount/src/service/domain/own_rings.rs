//! The rings of a domain that serves one mount over io_uring.

use floe_fuse::Rings;
use floe_sync::Mutex;

/// The number of connections that the mount may begin: one behind a front, and one without it if the kernel refuses that.
const CONNECTIONS_MAX: usize = 2;

/// The rings of a domain for each connection that its mount may begin, or why it has none.
pub(super) struct OwnRings(Mutex<Vec<Result<Rings, String>>>);

impl OwnRings {
    /// Creates them. A confined process cannot.
    pub(super) fn new() -> Self {
        let rings = || Rings::new().map_err(|error| format!("this process cannot use io_uring: {error}"));
        Self(Mutex::new((0..CONNECTIONS_MAX).map(|_| rings()).collect()))
    }

    /// Takes those of one connection.
    pub(super) fn take(&self) -> Result<Rings, String> {
        self.0.lock().pop().unwrap_or_else(|| Err("the process that serves the mount has used its rings".to_owned()))
    }

    /// Closes the others, because the mount has begun.
    pub(super) fn close(&self) {
        self.0.lock().clear();
    }
}
