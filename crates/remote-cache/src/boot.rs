//! Identifies a boot of the machine.

use std::{
    fs, process,
    time::{SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::xxh3_64;

/// A boot of the machine: the time from start to power-off. Bytes that were written during the current boot are at
/// least in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BootId(u64);

impl BootId {
    /// The current boot. If the kernel does not report it, the id is unique to this process.
    pub fn current() -> Self {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
            |_| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Self::of(&format!("{} {}", process::id(), now.as_nanos()))
            },
            |text| Self::of(text.trim()),
        )
    }

    /// The boot with this id of the kernel.
    pub fn of(text: &str) -> Self {
        Self(xxh3_64(text.as_bytes()))
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }
}
