//! The kernel's caches of names and pages, which all tests on a machine share.

use std::{
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use floe_sync::{RwLock, RwLockReadGuard};

use crate::skip::skipped;

/// Tests that count requests share it; tests that drop caches take it alone. `cargo test` runs one test program at a time.
static CACHES: RwLock<()> = RwLock::new(());

/// Whether an attempt to drop caches did not end.
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// How long the kernel may take to drop its caches.
const DROP_TIME_MAX: Duration = Duration::from_secs(30);

/// Which caches are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelCaches {
    /// Names and inodes that are not in use.
    Names = 2,
    /// Names, inodes and pages that are not in use.
    All = 3,
}

/// Waits until no test of this program keeps the kernel's caches, then makes the kernel drop them. Returns whether it did. If it
/// did not, the calling test is reported as skipped and must return: to drop pages, the kernel waits for each mount on the
/// machine that is being removed, and an unrelated one may never end.
///
/// # Panics
/// The user is not root.
#[must_use = "a test whose caches were not dropped must return"]
pub fn drop_kernel_caches(caches: KernelCaches) -> bool {
    let _alone = CACHES.write();
    let is_dropped = !IS_STUCK.load(Relaxed) && is_written_in_time(caches);
    if !is_dropped {
        IS_STUCK.store(true, Relaxed);
        skipped("the kernel does not drop its caches: it waits for a mount that is being removed");
    }
    is_dropped
}

/// Drops caches in a process of its own, because a thread that waits in the kernel would keep this process from ending.
fn is_written_in_time(caches: KernelCaches) -> bool {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("echo {} > /proc/sys/vm/drop_caches", caches as u8));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(command.status().expect("a shell")));
    let status = receiver.recv_timeout(DROP_TIME_MAX);
    assert!(status.is_err() || status.is_ok_and(|status| status.success()), "root drops caches");
    status.is_ok()
}

/// Keeps the kernel's caches until the result is dropped: other tests of this program drop none meanwhile. The same thread
/// must not drop caches.
pub fn keep_kernel_caches() -> RwLockReadGuard<'static, ()> {
    CACHES.read()
}
