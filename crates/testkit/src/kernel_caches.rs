//! The kernel's caches of names and pages, which all tests on a machine share.

use std::{
    fs,
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

/// Tests that count requests share it; tests that drop caches take it alone. `cargo test` runs one test program at a time.
static CACHES: RwLock<()> = RwLock::new(());

/// Which caches are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelCaches {
    /// Names and inodes that are not in use.
    Names = 2,
    /// Names, inodes and pages that are not in use.
    All = 3,
}

/// Waits until no test of this program keeps the kernel's caches, then makes the kernel drop them.
///
/// # Panics
/// The user is not root.
pub fn drop_kernel_caches(caches: KernelCaches) {
    let _alone = CACHES.write().unwrap_or_else(PoisonError::into_inner);
    fs::write("/proc/sys/vm/drop_caches", (caches as u8).to_string()).expect("root drops caches");
}

/// Keeps the kernel's caches until the result is dropped: other tests of this program drop none meanwhile. The same thread
/// must not drop caches.
pub fn keep_kernel_caches() -> RwLockReadGuard<'static, ()> {
    CACHES.read().unwrap_or_else(PoisonError::into_inner)
}
