//! Signals that other processes handle.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

/// How long a process may take until it handles a signal.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a process handles a signal itself: before that, the signal would kill it.
///
/// # Panics
///
/// The process does not handle the signal within a minute.
pub fn wait_until_caught(pid: u32, signal: Signal) {
    let started = Instant::now();
    let is_caught = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    while !is_caught() {
        assert!(started.elapsed() < PATIENCE, "process {pid} does not handle {signal:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
