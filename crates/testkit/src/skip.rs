//! Skips tests that the machine does not support, with a reason.

use std::{fs, path::Path};

use rustix::process::Signal;

pub use crate::skipped::skipped;
use crate::{
    container_root,
    corpus::Corpus,
    peer::{self, Versions, peer},
};

/// A requirement of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// The user is root.
    Root,
    /// `/dev/fuse` can be opened.
    Fuse,
    /// The kernel supports EROFS, and this user may mount it.
    KernelErofs,
    /// The kernel supports SquashFS, and this user may mount it.
    KernelSquashfs,
    /// A root directory with containerd.
    ContainerRoot,
    /// The reference images.
    Corpus,
    /// A program, by name.
    Peer(&'static str),
    /// A program, by name, in one of these versions.
    PeerOf(&'static str, Versions),
    /// This process, and so the programs that it starts, do not ignore the signal.
    Signal(Signal),
}

impl Need {
    /// Why the requirement is not met; `None` if it is.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Root => (!is_root()).then(|| "it needs root".to_owned()),
            Self::Fuse => {
                let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
                opened.err().map(|error| format!("/dev/fuse cannot be opened: {error}"))
            }
            Self::KernelErofs => kernel_lacks("erofs"),
            Self::KernelSquashfs => kernel_lacks("squashfs"),
            Self::ContainerRoot => {
                container_root().is_none().then(|| "there is no containerd in FLOE_CONTAINERS".to_owned())
            }
            Self::Corpus => Corpus::locate().err(),
            Self::Peer(program) => peer(program).is_none().then(|| peer::absent(program)),
            Self::PeerOf(program, versions) => versions.missing(program),
            Self::Signal(signal) => is_ignored(signal).then(|| {
                let number = signal.as_raw();
                format!("signal {number} is ignored, as shells and nohup do for programs in the background")
            }),
        }
    }
}

/// Whether all requirements are met. If not, prints a skip message to stderr, past the test harness's capture; the
/// calling test must then return. With `FLOE_NO_SKIP=1` the test fails instead.
///
/// # Panics
/// A requirement is not met and `FLOE_NO_SKIP=1`.
#[must_use = "a test that lacks something must return"]
pub fn ready(needs: &[Need]) -> bool {
    match needs.iter().find_map(|need| need.missing()) {
        None => true,
        Some(reason) => {
            skipped(&reason);
            false
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process ignores a signal. The programs that it starts inherit this.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 != 0
}

fn kernel_lacks(file_system: &str) -> Option<String> {
    if !is_root() {
        return Some(format!("mounting {file_system} in the kernel needs root"));
    }
    let known = || {
        let names = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        names.lines().any(|line| line.split_whitespace().last() == Some(file_system))
    };
    if !known() && Path::new("/sbin/modprobe").exists() {
        let _ = std::process::Command::new("/sbin/modprobe").args(["-q", file_system]).status();
    }
    (!known()).then(|| format!("this kernel has no {file_system}"))
}
